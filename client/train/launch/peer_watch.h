// Ends this rank in time if another one dies or the job is evicted.
//
// News of a death comes from this node's daemon or from another rank
// (PeerLine), while the main thread computes, or hangs in a collective. NCCL's
// collectives do not fail by themselves, so the watch calls `on_peer_died` at
// once, to abort them. If the main thread has not ended the run after kGrace,
// the watch calls `on_timeout`, which reports and leaves the process.
//
// On an eviction the watch calls `on_evicted` at once, and the run has
// kEvictedGrace to end its step and save. A lost daemon slows no step: the
// watch only calls `on_gone`.
// Thread safety: safe.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "proto/base/mutex.h"

namespace sluice::train {

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

  // `on_peer_died` gets the name of the dead peer, and may be empty. It runs on
  // the thread that receives the news, at most once, and may block: the timeout
  // does not wait for it. When Attach returns, the callback of a former Attach
  // is not running and will not run any more.
  using OnPeerDied = std::function<void(const std::string&)>;
  void Attach(client::Session& session, OnPeerDied on_peer_died);
  // Reports a death. `what`: "rank 1 of job demo: killed by signal 9".
  void PeerDied(const std::string& what);
  // From now on the end of a peer is normal, and an eviction has no effect.
  void Disarm();
  // Returns a peer's death, marked as one, or an eviction, or OK.
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
