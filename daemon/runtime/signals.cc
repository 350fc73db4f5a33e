#include "daemon/runtime/signals.h"

#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int kEnding[] = {SIGTERM, SIGINT, SIGQUIT};
constexpr int kNoted[] = {SIGHUP, SIGUSR1, SIGUSR2};

sigset_t Taken() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : kEnding) sigaddset(&taken, signal);
  for (const int signal : kNoted) sigaddset(&taken, signal);
  return taken;
}

}  // namespace

void BlockSignals() {
  const sigset_t taken = Taken();
  pthread_sigmask(SIG_BLOCK, &taken, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

absl::StatusOr<UniqueFd> OpenSignals() {
  const sigset_t taken = Taken();
  UniqueFd signals(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return ErrnoStatus(errno, "make a signalfd");
  return signals;
}

bool IsEndingSignal(int signal) {
  return std::find(std::begin(kEnding), std::end(kEnding), signal) !=
         std::end(kEnding);
}

}  // namespace sluice::daemon
