// A rank's own watch: maintains the rank's page, and reports the progress of a
// long step and the effect of a signal. The compute thread records what it does
// with a few stores; a monitor thread reads the page and prints, also while the
// compute thread hangs.
// Thread safety: the methods of "what the rank does" belong to the compute
// thread; all other methods are safe.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "client/torch/memory/segment_observer.h"
#include "client/torch/run/run_watch.h"
#include "client/train/watch/rank_page.h"
#include "client/train/watch/watchdog.h"
#include "proto/base/mutex.h"

namespace sluice::train {

// Prints progress on stderr. On a terminal one line is rewritten and notes go
// above it; elsewhere (a log file, a pipe) each text is a line of its own.
// Thread safety: safe.
class Console {
 public:
  ~Console() { Close(); }
  bool terminal() const { return terminal_; }
  void Line(const std::string& text);  // progress
  void Note(const std::string& text);  // a line of its own, which stays
  // Ends the rewritten line, before other output to stderr.
  void Close();

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  Mutex mutex_;
  // Whether the rewritten line lacks its newline.
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

// Makes SIGINT, SIGTERM and SIGHUP (unless ignored) call RequestStop: the run
// stops at the end of the step. The handler only sets atomics.
void InstallStopSignals();
// Requests a stop; for evictions by the daemon. Thread-safe.
void RequestStop();

class RankWatch final : public runtime::SegmentObserver,
                        public runtime::RunWatch {
 public:
  struct Options {
    std::string page_file;  // empty: no other process reads it
    bool speaks = false;    // prints progress; rank 0 of a training run
    bool launched = false;  // by our launcher
    int64_t steps = 0;
    std::string save;
    // Set in one rank per node, which reports that its daemon went or is back.
    std::function<bool()> daemon_answers;
    std::string daemon;  // the daemon's socket, for people
    WatchLimits limits;  // of this rank's own watchdog, which needs `end`
    int rank = 0;
    // Ends the rank; called by that watchdog on the watch's thread. Null if the
    // rank needs no watchdog of its own.
    std::function<void(const std::string&)> end;
  };
  // If the page cannot be made, only this process can watch the rank.
  explicit RankWatch(const Options& options);
  ~RankWatch() override;

  Console& console() { return console_; }

  // Reports, once, that the session is closed. Thread-safe.
  void DaemonGone(const std::string& reason);

  // --- what the rank does ---
  void Enter(RankPhase phase);
  // The tracker of a calibration has no costs, so it shows no fraction.
  void BeginCalibration(int64_t layers, int64_t chunks) override;
  void BeginPlanning() override { Enter(RankPhase::kPlanning); }
  void EndPlanning() override { Enter(RankPhase::kStarting); }
  // Sets the parts and expected duration (0: unknown) of the steps to come.
  void Expect(StepTracker tracker, double seconds);
  void BeginStep(int64_t step, int64_t sequences);
  void BeginSequence(int64_t index);
  void EndStep(double seconds);
  // Records a piece of a step that is no segment; empty: the piece ended.
  void At(std::string_view what);
  // Returns whether a stop was requested, and prints the request if it was not
  // printed yet. A later request ends the run after step `next`.
  bool HearStop(int64_t next);
  void SegmentBegan(std::string_view kind) override;
  void SegmentEnded(std::string_view kind) override;
  void CollectiveBegan(std::string_view what) { page_->SetCollective(what); }
  void CollectiveEnded() { page_->SetCollective(""); }
  double expected_s() const { return expected_s_; }

 private:
  void Run();
  void SayProgress(const RankSample& sample, double now_s);
  void SayStop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mutex_);
  void SayDaemon(double now_s);
  void LookAtSelf(const RankSample& sample, double now_s);

  const Options options_;
  const std::unique_ptr<RankPage> page_;
  Console console_;
  StepTracker step_, tracker_;  // of a whole step, and of the current work
  double expected_s_ = 0;
  // Used by the monitor thread only.
  double shown_s_ = 0;
  double asked_daemon_s_ = 0;
  Watchdog watchdog_;

  std::atomic<double> daemon_gone_s_{0};  // since when; 0: it answers
  double measured_s_ = 0;                 // of the last step

  // The compute or the monitor thread prints a stop request, once.
  Mutex stop_mutex_;
  bool stop_said_ ABSL_GUARDED_BY(stop_mutex_) = false;
  // The step after which a stop would end the run; 0: at once.
  int64_t last_step_ ABSL_GUARDED_BY(stop_mutex_) = 0;

  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice::train
