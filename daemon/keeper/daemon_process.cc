#include "daemon/keeper/daemon_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "absl/strings/str_join.h"
#include "daemon/store/starter.h"
#include "proto/base/pidfd.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int kNotRunnable = 127;  // as in a shell

std::string LineOf(const std::string& text) {
  std::string line = "sluiced-keeper: " + text;
  // A pipe writes at most PIPE_BUF bytes atomically.
  if (line.size() >= PIPE_BUF) line.resize(PIPE_BUF - 1);
  line += '\n';
  return line;
}

void Write(int fd, std::string_view line) {
  pollfd writable = {.fd = fd, .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t wrote = write(fd, line.data(), line.size());
}

// Opens the pipe at stderr a second time, with O_NONBLOCK: the daemon writes to
// the same pipe, and the keeper must not wait if it is full. Setting O_NONBLOCK
// on the inherited descriptor would affect all its users. A file is not opened
// again: it never blocks, and a second descriptor would have its own offset.
UniqueFd PipeOpenedAgain() {
  struct stat of = {};
  if (fstat(STDERR_FILENO, &of) != 0 || !S_ISFIFO(of.st_mode)) {
    return UniqueFd();
  }
  return UniqueFd(
      open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

// Moves fds[i] to the number kFirstHandedOn + i, where it stays open over exec.
// A descriptor that occupies the number of another one is first moved to a
// higher number, so one spare number suffices. Returns false if the process may
// not open another descriptor.
bool LineUp(std::vector<int> fds) {
  const int end = kFirstHandedOn + static_cast<int>(fds.size());
  std::unordered_map<int, size_t> index_at;
  for (size_t i = 0; i < fds.size(); ++i) index_at[fds[i]] = i;
  for (size_t i = 0; i < fds.size(); ++i) {
    const int target = kFirstHandedOn + static_cast<int>(i);
    if (fds[i] == target) {
      if (fcntl(target, F_SETFD, 0) != 0) return false;
      continue;
    }
    if (const auto in_the_way = index_at.find(target);
        in_the_way != index_at.end()) {
      const int moved = fcntl(target, F_DUPFD_CLOEXEC, end);
      if (moved < 0) return false;
      const size_t index = in_the_way->second;
      fds[index] = moved;
      index_at.erase(in_the_way);
      index_at[moved] = index;
    }
    if (dup2(fds[i], target) < 0) return false;
    index_at.erase(fds[i]);
    close(fds[i]);
  }
  return true;
}

void SetEnvironment(const std::string& notify_socket,
                    const KeptDescriptors& kept, pid_t keeper) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  };
  for (const char* stale : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
                            "WATCHDOG_PID", "WATCHDOG_USEC", "SLUICE_KEEPER"}) {
    unsetenv(stale);
  }
  set("NOTIFY_SOCKET", notify_socket);
  set("FDSTORE", std::to_string(kept.capacity()));
  set("SLUICE_KEEPER_PID", std::to_string(keeper));
  if (kept.all().empty()) return;
  set("LISTEN_PID", std::to_string(getpid()));
  set("LISTEN_FDS", std::to_string(kept.all().size()));
  set("LISTEN_FDNAMES",
      absl::StrJoin(kept.all(), ":", [](std::string* out, const auto& entry) {
        out->append(entry.first);
      }));
}

[[noreturn]] void BecomeDaemon(const std::vector<std::string>& words,
                               const std::string& notify_socket,
                               const KeptDescriptors& kept, pid_t keeper) {
  setpgid(0, 0);
  signal(SIGPIPE, SIG_DFL);
  std::vector<int> fds;
  for (const auto& [name, fd] : kept.all()) fds.push_back(fd.get());
  SetEnvironment(notify_socket, kept, keeper);
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  if (LineUp(std::move(fds))) execv(argv[0], argv.data());
  const int error = errno;
  signal(SIGPIPE, SIG_IGN);  // the reader of the log may be gone
  // May wait if another process is filling the pipe at this moment.
  Write(STDERR_FILENO, LineOf(fmt::format("cannot run {}: {}", argv[0],
                                          std::strerror(error))));
  _exit(kNotRunnable);
}

}  // namespace

void Say(const std::string& text) {
  static const UniqueFd& pipe = *new UniqueFd(PipeOpenedAgain());
  Write(pipe ? pipe.get() : STDERR_FILENO, LineOf(text));
}

absl::StatusOr<DaemonProcess> DaemonProcess::Start(
    const std::vector<std::string>& argv, const std::string& notify_socket,
    const KeptDescriptors& kept) {
  std::fflush(nullptr);
  const pid_t keeper = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "start a process");
  if (pid == 0) BecomeDaemon(argv, notify_socket, kept, keeper);
  setpgid(pid, pid);  // both processes set it: either may run first
  UniqueFd life = PidfdOf(pid);
  if (life) return DaemonProcess(pid, std::move(life));
  const int error = errno;
  kill(-pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return PidfdFault(error, "watch sluiced");
}

bool DaemonProcess::HasEnded() const {
  pollfd ended = {life_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 1;
}

void DaemonProcess::EndService(int signal) const {
  sigqueue(pid_, signal, {.sival_int = kEndsService});
}

DaemonEnd DaemonProcess::End() const {
  KillGroup();
  DaemonEnd end;
  siginfo_t how = {};
  waitid(P_PID, static_cast<id_t>(pid_), &how, WEXITED | WNOWAIT);
  (how.si_code == CLD_EXITED ? end.exit_code : end.signal) = how.si_status;
  return end;
}

std::string DaemonEnd::Text() const {
  if (signal == 0) return fmt::format("exited with status {}", exit_code);
  const char* name = sigabbrev_np(signal);
  return fmt::format("was killed by signal {} (SIG{})", signal,
                     name != nullptr ? name : "?");
}

RestartPolicy::Verdict RestartPolicy::Decide(const DaemonEnd& end, Of of,
                                             absl::Time now) {
  // After bad input the daemon is restarted only if descriptors are held: ranks
  // go on once an administrator has corrected the input.
  const bool bad_input =
      end.signal == 0 && end.exit_code == kBadInput && !of.holds;
  if (of.asked || bad_input) return {.exit = end.status(), .pause = {}};
  deaths_.push_back(now);
  while (now - deaths_.front() > kWindow) deaths_.pop_front();
  if (deaths_.size() <= kFreeDeaths) {
    slow_ = false;
    return {.exit = {}, .pause = absl::ZeroDuration()};
  }
  // The pause doubles with each further death, up to kLongestPause.
  const size_t extra = std::min<size_t>(deaths_.size() - kFreeDeaths - 1, 10);
  return {.exit = {},
          .pause = std::min(kLongestPause, kFirstPause * (1 << extra)),
          .slower_now = !std::exchange(slow_, true)};
}

}  // namespace sluice::daemon
