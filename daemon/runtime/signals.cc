#include "daemon/runtime/signals.h"

#include <algorithm>
#include <iterator>

namespace sluice::daemon {
namespace {

constexpr int kEnding[] = {SIGTERM, SIGINT, SIGQUIT};
constexpr int kNoted[] = {SIGHUP, SIGUSR1, SIGUSR2};

}  // namespace

bool IsEndingSignal(int signal) {
  return std::find(std::begin(kEnding), std::end(kEnding), signal) !=
         std::end(kEnding);
}

sigset_t TakenSignals() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : kEnding) sigaddset(&taken, signal);
  for (const int signal : kNoted) sigaddset(&taken, signal);
  return taken;
}

}  // namespace sluice::daemon
