#include "client/train/watch/stop.h"

#include <signal.h>

#include <atomic>

namespace sluice::train {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
  stop_requested = true;
}

}  // namespace

void InstallStopSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // Reads and writes go on: the flag is read only at the end of a step.
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // nohup ignores SIGHUP; then a closed terminal must not end the run.
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

void RequestStop() { stop_requested = true; }
bool StopRequested() { return stop_requested; }
int StopSignal() { return stop_signal; }

}  // namespace sluice::train
