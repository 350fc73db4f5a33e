// Ends this rank in time if another one dies or the job is evicted.
//
// News of a death comes from this node's daemon or from another rank
// (PeerLine), while the main thread computes, or hangs in a collective that
// will never end. The main thread usually notices by itself, because its
// collective fails. If it has not ended the run after kGrace, the watch calls
// `on_timeout`, which reports and leaves the process. NCCL's collectives do not
// fail by themselves, so `on_peer_died` is called at once, to abort them.
//
// On an eviction the run ends in order: `on_evicted` is called at once, and the
// run has kEvictedGrace to end its step and save. A lost daemon slows no step:
// the watch only calls `on_gone`.
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

  // `on_peer_died` gets the name of what died. It runs on the thread that
  // brings the news, at most once, and may block: the timeout does not wait for
  // it. It may be empty. When Attach returns, the callback of a former Attach
  // is not running and never will.
  using OnPeerDied = std::function<void(const std::string&)>;
  void Attach(client::Session& session, OnPeerDied on_peer_died);
  // `what`: "rank 1 of job demo: killed by signal 9".
  void PeerDied(const std::string& what);
  // From now on a peer's end is its normal end, and an eviction stops nothing.
  void Disarm();
  // Returns why the run has to end: a peer's death, marked as one, or an
  // eviction. OK: it need not end.
  absl::Status why() const;
  // Returns the Status that a rank ends with. A peer's death explains a
  // lost collective (its news may take kNews to come); an eviction explains an
  // end before the last step (`interrupted`, or a fault). Neither explains a
  // shortage, and a death explains no fault of the rank's own: the peer may
  // have died of it.
  absl::Status Explain(const absl::Status& status, bool interrupted);

 private:
  void OnEvent(const client::SessionEvent& event);
  // Keeps the first reason. Returns false if the run ends already.
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
