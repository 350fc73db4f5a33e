#include "client/ctl/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/time/clock.h"
#include "proto/base/pidfd.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"

extern char** environ;

namespace sluice::ctl {
namespace {

constexpr int kSliceMs = 100;

// It writes into memory, so that neither waits for the other.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words, int out,
                            int err) {
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C ends it, also where this process waits with its own end.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT) {
    return absl::NotFoundError(fmt::format("there is no {} here", words[0]));
  }
  if (error != 0) return ErrnoStatus(error, "start " + words[0]);
  return pid;
}

// OK: it has ended by itself.
absl::Status Await(pid_t pid, const std::string& name,
                   const ProgramLimits& limits) {
  const UniqueFd pidfd = PidfdOf(pid);
  const absl::Time deadline = absl::Now() + limits.patience;
  while (true) {
    pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, kSliceMs) == 1) return absl::OkStatus();
    if (limits.stopped && limits.stopped()) {
      return absl::CancelledError(name + " was stopped");
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          fmt::format("{} did not end within {}", name,
                      absl::FormatDuration(limits.patience)));
    }
  }
}

std::string WrittenTo(const UniqueFd& file) {
  std::string text(static_cast<size_t>(lseek(file.get(), 0, SEEK_END)), '\0');
  const ssize_t got = pread(file.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

}  // namespace

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& words,
                                         const ProgramLimits& limits) {
  const UniqueFd out(memfd_create("out", MFD_CLOEXEC));
  const UniqueFd err(memfd_create("err", MFD_CLOEXEC));
  if (!out || !err) return ErrnoStatus(errno, "make a memfd");
  SLUICE_ASSIGN_OR_RETURN(const pid_t pid, Spawn(words, out.get(), err.get()));
  const absl::Status ended = Await(pid, words[0], limits);
  if (!ended.ok()) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  SLUICE_RETURN_IF_ERROR(ended);
  return ProgramResult{
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
      WrittenTo(out), WrittenTo(err)};
}

absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& words,
                                     const ProgramLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(ProgramResult result, RunProgram(words, limits));
  if (result.exit_status == 0) return std::move(result.out);
  return absl::UnavailableError(
      fmt::format("{} failed: {}", words[0], FirstLine(result.err)));
}

}  // namespace sluice::ctl
