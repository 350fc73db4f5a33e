// Tells every rank of a run, on every node, that a rank has died.
//
// A daemon informs only the ranks of its own node, and NCCL's kernels wait for
// a dead rank forever. So each rank keeps a TCP connection to rank 0, which
// passes a death on to all. The kernel closes a dead process's connections, so
// no rank sends anything in normal operation, and a rank that is stopped by a
// signal does not count as dead. TCP's keepalive detects within 6 s a node that
// lost power.
//
// Rank 0 waits kNaming before it passes a death on, because another rank of the
// dead rank's node may send what that node's daemon knows about the death. Rank
// 0's own death closes all connections.
//
// The connections carry lines: first "TOKEN RANK", then "died WHAT" or "end".
// Thread safety: safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

class PeerLine {
 public:
  static constexpr absl::Duration kNaming = absl::Milliseconds(500);

  // Where rank 0 listens. Connections without the token are dropped.
  struct Place {
    int64_t port = 0, token = 0;
  };
  // `what` is a text such as "rank 1 of job demo: killed by signal 9". The
  // callback runs on the line's thread, at most once, and may block.
  using OnDeath = std::function<void(const std::string& what)>;

  // Makes rank 0's line, which listens on all of this node's addresses.
  static absl::StatusOr<std::unique_ptr<PeerLine>> Hold(OnDeath on_death);
  // Makes another rank's line. Unavailable: rank 0 is not reached within 10 s.
  static absl::StatusOr<std::unique_ptr<PeerLine>> Reach(
      const std::string& address, Place place, int rank, OnDeath on_death);
  ~PeerLine();

  Place place() const { return place_; }
  // Sends a death, which may be this rank's own, to all other ranks, unless a
  // death was sent or received before. Does not wait for those ranks.
  void Tell(const std::string& what);
  // Declares this rank's end normal. The line reports no death afterwards.
  void End();

 private:
  struct Peer {
    UniqueFd fd;
    int rank = -1;  // -1: not received yet
    std::string unread;
    absl::Time closed_at = absl::InfiniteFuture();
  };
  PeerLine(Place place, UniqueFd listener, std::list<Peer> peers,
           OnDeath on_death);
  void Run();
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Hear(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `Read` and `Obey` return false if the connection is to be dropped.
  bool Read(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Obey(Peer& peer, const std::string& line)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Place place_;
  const UniqueFd listener_;  // rank 0 only
  const OnDeath on_death_;
  Mutex mutex_;
  // All other ranks on rank 0; only rank 0 on other ranks.
  std::list<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  std::string died_ ABSL_GUARDED_BY(mutex_);   // sent or received
  std::string heard_ ABSL_GUARDED_BY(mutex_);  // not yet passed to on_death_
  bool quiet_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Ends this rank if another rank dies or the job is evicted.
//
// News of a death comes from this node's daemon or from another rank
// (PeerLine), while the main thread computes, or hangs in a collective. NCCL's
// collectives do not fail by themselves, so the watch calls `on_peer_died` at
// once, to abort them. If the main thread has not ended the run after kGrace,
// the watch calls `on_timeout`, which reports and ends the process.
//
// On an eviction the watch calls `on_evicted` at once, and the run has
// kEvictedGrace to end its step and save. A lost daemon slows no step: the
// watch only calls `on_gone`.
// Thread safety: safe.
class PeerWatch {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(3);
  static constexpr absl::Duration kNews = absl::Milliseconds(1500);
  static constexpr absl::Duration kEvictedGrace = absl::Seconds(30);

  // `on_timeout` gets why(). `on_evicted` and `on_gone` (which gets the reason)
  // run on the session's thread.
  PeerWatch(std::function<void(const absl::Status&)> on_timeout,
            std::function<void()> on_evicted,
            std::function<void(const std::string&)> on_gone);
  ~PeerWatch();

  // `on_peer_died` (may be empty) gets the name of the dead peer. It runs on
  // the thread that receives the news, at most once, and may block: the timeout
  // does not wait for it. When Attach returns, the callback of a former Attach
  // is not running and will not run any more.
  using OnPeerDied = std::function<void(const std::string&)>;
  void Attach(client::Session& session, OnPeerDied on_peer_died);
  // Reports a death. `what`: "rank 1 of job demo: killed by signal 9".
  void PeerDied(const std::string& what);
  // From now on the end of a peer is normal, and an eviction has no effect.
  void Disarm();
  // Returns a peer's death (IsCausedByPeer), or an eviction, or OK.
  absl::Status why() const;
  // Returns the Status with which the rank ends, given its own `status`. A
  // peer's death replaces the error of a lost collective (the news may take
  // kNews to arrive). An eviction replaces an end before the last step
  // (`interrupted`, or an error). Neither replaces a shortage, and a death
  // replaces no fault of the rank's own, because the peer may have died of that
  // fault.
  absl::Status Explain(const absl::Status& status, bool interrupted);

 private:
  void OnEvent(const client::SessionEvent& event);
  // Keeps the first reason. Returns false if there already was one, or if the
  // watch is disarmed.
  bool Keep(const absl::Status& why);
  void Run();

  const std::function<void(const absl::Status&)> on_timeout_;
  const std::function<void()> on_evicted_;
  const std::function<void(const std::string&)> on_gone_;
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  bool disarmed_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex calling_;
  OnPeerDied on_peer_died_ ABSL_GUARDED_BY(calling_);
  std::thread thread_;
};

}  // namespace sluice::train
