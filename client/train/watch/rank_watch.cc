#include "client/train/watch/rank_watch.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "proto/base/clock.h"

namespace sluice::train {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Shorter steps are not reported while they run, only at their end.
constexpr double kQuietSeconds = 2;
constexpr double kTerminalSeconds = 0.5;
constexpr double kLogSeconds = 10;
// The interval between two checks whether a lost daemon is back.
constexpr double kDaemonSeconds = 2;

std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};  // the first that requested a stop; 0: none
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
  stop_requested = true;
}

std::unique_ptr<RankPage> OpenPage(const std::string& path) {
  auto page = RankPage::Open(path);
  if (!page.ok()) page = RankPage::Open("");
  return std::move(page).value();
}

}  // namespace

void Console::Close() {
  const MutexLock lock(mutex_);
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

void Console::Line(const std::string& text) {
  const MutexLock lock(mutex_);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  std::fflush(stderr);
  open_ = terminal_;
}

void Console::Note(const std::string& text) {
  const MutexLock lock(mutex_);
  std::fprintf(stderr, "%s%s\n", open_ ? "\r\033[K" : "", text.c_str());
  std::fflush(stderr);
  open_ = false;
}

void InstallStopSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // Interrupted reads and writes go on: the flag is checked at a step's end.
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // nohup ignores SIGHUP; then a closed terminal must not end the run.
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

void RequestStop() { stop_requested = true; }

RankWatch::RankWatch(const Options& options)
    : options_(options),
      page_(OpenPage(options.page_file)),
      watchdog_(options.limits, /*alone=*/true) {
  Enter(RankPhase::kStarting);
  thread_ = std::thread([this] { Run(); });
}

RankWatch::~RankWatch() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void RankWatch::Enter(RankPhase phase) {
  page_->Enter(phase, MonotonicSeconds());
}

void RankWatch::BeginCalibration(int64_t layers, int64_t chunks) {
  tracker_ = StepTracker(layers, chunks, {});
  Enter(RankPhase::kCalibrating);
}

void RankWatch::Expect(StepTracker tracker, double seconds) {
  step_ = std::move(tracker);
  expected_s_ = seconds;
  measured_s_ = 0;
  page_->SetExpected(seconds);
}

void RankWatch::BeginStep(int64_t step, int64_t sequences) {
  tracker_ = step_;
  tracker_.BeginStep(sequences);
  page_->BeginStep(step, measured_s_ > 0 ? measured_s_ : expected_s_);
  Enter(RankPhase::kStep);
}

void RankWatch::BeginSequence(int64_t index) {
  tracker_.BeginSequence(index);
  page_->SetSegment("", tracker_);
}

void RankWatch::EndStep(double seconds) {
  measured_s_ = seconds;
  Enter(RankPhase::kReady);
}

void RankWatch::At(std::string_view what) {
  tracker_.LeaveChunks();
  page_->SetSegment(what, tracker_);
}

bool RankWatch::HearStop(int64_t next) {
  const MutexLock lock(stop_mutex_);
  if (stop_requested) {
    SayStop();
    return true;
  }
  last_step_ = std::min(next, options_.steps);
  return false;
}

void RankWatch::SegmentBegan(std::string_view kind) {
  tracker_.Began(kind);
  page_->SetSegment(kind, tracker_);
}

void RankWatch::SegmentEnded(std::string_view kind) {
  tracker_.Ended(kind);
  page_->SetSegment("", tracker_);
}

void RankWatch::Run() {
  MutexLock lock(mutex_);
  auto tick = CondVar::Deadline(kTick);
  while (!ending_) {
    if (changed_.WaitUntil(mutex_, tick)) continue;
    const double now_s = MonotonicSeconds();
    const RankSample sample = page_->Read();
    // Unlocked, because the checks and their callbacks may take long.
    lock.Unlock();
    SayDaemon(now_s);
    LookAtSelf(sample, now_s);
    {
      const MutexLock stop_lock(stop_mutex_);
      if (stop_requested) SayStop();
    }
    if (options_.speaks) SayProgress(sample, now_s);
    lock.Lock();
    tick = CondVar::Deadline(kTick);
  }
}

void RankWatch::SayProgress(const RankSample& sample, double now_s) {
  if (sample.phase == RankPhase::kReady) return;
  if (now_s - sample.phase_began_s < kQuietSeconds) return;
  const double since = std::max(shown_s_, sample.phase_began_s);
  const double pause = console_.terminal() ? kTerminalSeconds : kLogSeconds;
  if (now_s - since < pause) return;
  shown_s_ = now_s;
  console_.Line(ProgressText(sample, options_.steps, now_s));
}

void RankWatch::SayStop() {
  if (stop_said_ || !options_.speaks) return;
  stop_said_ = true;
  console_.Note(StopText({.signal = stop_signal,
                          .last_step = last_step_,
                          .save = options_.save,
                          .second_kills = options_.launched},
                         page_->Read(), MonotonicSeconds()));
}

void RankWatch::DaemonGone(const std::string& reason) {
  if (options_.daemon_answers == nullptr) return;
  daemon_gone_s_ = MonotonicSeconds();
  console_.Note(fmt::format(
      "the daemon at {} is gone ({}): steps go on; no new plan or memory can "
      "be had",
      options_.daemon, reason));
}

void RankWatch::SayDaemon(double now_s) {
  const double gone_s = daemon_gone_s_;
  if (gone_s == 0 || now_s - asked_daemon_s_ < kDaemonSeconds) return;
  asked_daemon_s_ = now_s;
  if (!options_.daemon_answers()) return;
  daemon_gone_s_ = 0;
  console_.Note(fmt::format(
      "a daemon is back at {} after {}: this run cannot rejoin it; steps go "
      "on, no new plan or memory can be had",
      options_.daemon, Duration(now_s - gone_s)));
}

void RankWatch::LookAtSelf(const RankSample& sample, double now_s) {
  if (options_.end == nullptr) return;
  const WatchVerdict verdict =
      watchdog_.Look({{.rank = options_.rank, .sample = sample}}, now_s);
  for (const std::string& note : verdict.notes) console_.Note(note);
  if (!verdict.end.empty()) options_.end(verdict.end);
}

}  // namespace sluice::train
