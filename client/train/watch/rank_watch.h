// A rank's own watch: keeps its page, says how a long step goes, and what a
// signal will do.
//
// The compute thread tells what it does (segments, collectives, phases) with a
// few stores; a thread of the watch's own reads the page and speaks, so a rank
// that computes, waits or hangs is never silent.
//
// Thread safety: the methods of "what the rank does" belong to the compute
// thread; the others are safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "client/torch/memory/segment_observer.h"
#include "client/torch/run/run_watch.h"
#include "client/train/watch/console.h"
#include "client/train/watch/rank_page.h"
#include "client/train/watch/step_tracker.h"
#include "client/train/watch/watchdog.h"
#include "proto/base/mutex.h"

namespace sluice::train {

class RankWatch final : public runtime::SegmentObserver,
                        public runtime::RunWatch {
 public:
  struct Options {
    std::string page_file;  // empty: no other process reads it
    bool speaks = false;    // rank 0 of a training run
    bool launched = false;  // by our launcher
    int64_t steps = 0;
    std::string save;
    // One rank per node says when its daemon goes and comes; null: another.
    std::function<bool()> daemon_answers;
    std::string daemon;  // its socket, for people
    // Where no launcher of ours watches: this rank's own watchdog, and what
    // ends the rank (on the watch's thread); null: none.
    WatchLimits limits;
    int rank = 0;
    std::function<void(const std::string&)> end;
  };
  // A page that cannot be made costs what others see of it, never the run.
  static std::unique_ptr<RankWatch> Start(const Options& options);
  ~RankWatch() override;

  Console& console() { return console_; }

  // The session is closed: said once. Safe.
  void DaemonGone(const std::string& reason);

  // --- what the rank does ---
  void Enter(RankPhase phase);
  // The tracker of its two chunks, without costs.
  void BeginCalibration(int64_t layers, int64_t chunks) override;
  void BeginPlanning() override { Enter(RankPhase::kPlanning); }
  void EndPlanning() override { Enter(RankPhase::kStarting); }
  // From now on steps look like this; 0: it is not known how long they take.
  void Expect(StepTracker tracker, double seconds);
  void BeginStep(int64_t step, int64_t sequences);
  void BeginSequence(int64_t index);
  void EndStep(double seconds);
  // A piece of a step that is no segment; empty: it is over.
  void At(std::string_view what);
  // Whether a stop is wished, which is then said, if it was not yet: nothing
  // ends unexplained. A wish that comes later ends the run after step `next`.
  bool HearStop(int64_t next);
  void SegmentBegan(std::string_view kind) override;
  void SegmentEnded(std::string_view kind) override;
  void CollectiveBegan(std::string_view what) { page_->SetCollective(what); }
  void CollectiveEnded() { page_->SetCollective(""); }
  double expected_s() const { return expected_s_; }

 private:
  RankWatch(const Options& options, std::unique_ptr<RankPage> page);
  void Run();
  void SayProgress(const RankSample& sample, double now_s);
  void LookForStop(double now_s);
  void SayStop(const RankSample& sample, double now_s)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mutex_);
  void SayDaemon(double now_s);
  void LookAtSelf(const RankSample& sample, double now_s);

  const Options options_;
  const std::unique_ptr<RankPage> page_;
  Console console_;
  StepTracker step_, tracker_;  // a step's, and what runs now
  double expected_s_ = 0;
  // The monitor thread's.
  double shown_s_ = 0;
  double asked_daemon_s_ = 0;
  Watchdog watchdog_;

  std::atomic<double> daemon_gone_s_{0};  // 0: it is there, or is back
  double measured_s_ = 0;                 // the last step

  // What is said of a wish to stop is what HearStop() made of it.
  Mutex stop_mutex_;
  bool stop_said_ ABSL_GUARDED_BY(stop_mutex_) = false;
  // If the wish came now; 0: before the first.
  int64_t last_step_ ABSL_GUARDED_BY(stop_mutex_) = 0;

  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice::train
