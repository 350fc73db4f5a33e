#include "daemon/keeper/watched_daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "daemon/store/starter.h"
#include "proto/base/pidfd.h"
#include "proto/base/status.h"

namespace sluice::daemon {
absl::StatusOr<WatchedDaemon> WatchedDaemon::Start(
    const DaemonCommand& command, const KeptDescriptors& kept) {
  SLUICE_ASSIGN_OR_RETURN(const pid_t pid, StartDaemon(command, kept));
  UniqueFd life = PidfdOf(pid);
  if (life) return WatchedDaemon(pid, std::move(life), /*child=*/true);
  const int error = errno;
  kill(-pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return PidfdFault(error, "watch sluiced");
}

absl::StatusOr<WatchedDaemon> WatchedDaemon::Adopt(pid_t pid) {
  UniqueFd life = PidfdOf(pid);
  // Asked behind it: a parent that is there now was there then.
  if (!life && errno != ESRCH) return PidfdFault(errno, "watch sluiced");
  if (!life || getppid() != pid) {
    return absl::InvalidArgumentError(
        fmt::format("process {} did not start this one: --adopt is for sluiced "
                    "itself, whose keeper died",
                    pid));
  }
  return WatchedDaemon(pid, std::move(life), /*child=*/false);
}

bool WatchedDaemon::HasEnded() const {
  pollfd ended = {life_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 1;
}

void WatchedDaemon::Signal(int signal) const {
  syscall(SYS_pidfd_send_signal, life_.get(), signal, nullptr, 0);
}

void WatchedDaemon::EndService(int signal) const {
  siginfo_t info = {};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_int = kEndsService;
  syscall(SYS_pidfd_send_signal, life_.get(), signal, &info, 0);
}

void WatchedDaemon::KillGroup() const { kill(-pid_, SIGKILL); }

absl::StatusOr<std::vector<std::string>> WatchedDaemon::Command() const {
  std::ifstream file(fmt::format("/proc/{}/cmdline", pid_));
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) {
    return absl::UnavailableError(
        fmt::format("process {} ended before it was adopted", pid_));
  }
  return words;
}

DaemonEnd WatchedDaemon::End() const {
  KillGroup();
  DaemonEnd end;
  siginfo_t how = {};
  end.known = child_ && waitid(P_PID, static_cast<id_t>(pid_), &how,
                               WEXITED | WNOWAIT) == 0;
  if (!end.known) return end;
  (how.si_code == CLD_EXITED ? end.exit_code : end.signal) = how.si_status;
  return end;
}

void WatchedDaemon::Reap() const {
  if (child_) waitpid(pid_, nullptr, 0);
}

}  // namespace sluice::daemon
