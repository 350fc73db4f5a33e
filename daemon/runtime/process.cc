#include "daemon/runtime/process.h"

#include <sys/resource.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

sigset_t Taken() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal :
       {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2}) {
    sigaddset(&taken, signal);
  }
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
  return signal == SIGTERM || signal == SIGINT || signal == SIGQUIT;
}

int64_t RaiseDescriptorLimit() {
  rlimit limit = {.rlim_cur = 1024, .rlim_max = 1024};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
      limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  constexpr rlim_t kMost = 1 << 20;
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMost));
}

const std::string& ThisProgram() {
  std::error_code error;
  static const std::string self =
      std::filesystem::read_symlink("/proc/self/exe", error).string();
  return self;
}

std::string Sibling(const std::string& name) {
  return std::filesystem::path(ThisProgram()).replace_filename(name).string();
}

}  // namespace sluice::daemon
