#include "proto/base/spawn.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/time/clock.h"
#include "proto/base/pidfd.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

void SetAttributes(const SpawnOptions& options, posix_spawnattr_t* attributes) {
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : options.blocked) sigaddset(&blocked, signal);
  posix_spawnattr_setsigmask(attributes, &blocked);
  int flags = POSIX_SPAWN_SETSIGMASK;
  if (options.signals != SpawnOptions::Signals::kAsHere) {
    sigset_t defaults;
    sigfillset(&defaults);
    if (options.signals == SpawnOptions::Signals::kDefaultPipe) {
      sigemptyset(&defaults);
      sigaddset(&defaults, SIGPIPE);
    }
    posix_spawnattr_setsigdefault(attributes, &defaults);
    flags |= POSIX_SPAWN_SETSIGDEF;
  }
  if (options.own_group) {
    posix_spawnattr_setpgroup(attributes, 0);
    flags |= POSIX_SPAWN_SETPGROUP;
  }
  posix_spawnattr_setflags(attributes, static_cast<short>(flags));
}

constexpr int kSliceMs = 100;

// Starts the program in this process group, so that Ctrl-C ends the program
// even if this process defers the signal.
absl::StatusOr<pid_t> StartProgram(const std::vector<std::string>& words,
                                   const UniqueFd& in, const UniqueFd& out,
                                   const UniqueFd& err) {
  auto pid = Spawn(words, {.files = {{in.get(), STDIN_FILENO},
                                     {out.get(), STDOUT_FILENO},
                                     {err.get(), STDERR_FILENO}},
                           .search_path = true});
  if (!absl::IsNotFound(pid.status())) return pid;
  return absl::NotFoundError(fmt::format("there is no {} here", words[0]));
}

// Returns whether the child has ended, without reaping it.
bool HasEnded(pid_t child) {
  siginfo_t how = {};
  return waitid(P_PID, static_cast<id_t>(child), &how,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         how.si_pid == child;
}

// Waits for the program. Without a pidfd (no descriptor is free) the program's
// end is noticed up to 100 ms late.
absl::Status Await(pid_t pid, const std::string& name,
                   const ProgramLimits& limits) {
  const UniqueFd pidfd = PidfdOf(pid);
  const absl::Time deadline = absl::Now() + limits.patience;
  while (true) {
    pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now()) + 1;
    const auto slice = static_cast<int>(std::clamp<int64_t>(left, 0, kSliceMs));
    if (poll(&ended, 1, slice) == 1 || HasEnded(pid)) return absl::OkStatus();
    if (limits.stopped && limits.stopped()) {
      return absl::CancelledError(name + " was stopped");
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(fmt::format(
          "{} did not end within {}", name, FormatSpan(limits.patience)));
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

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words,
                            const SpawnOptions& options) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const auto& [from, to] : options.files) {
    posix_spawn_file_actions_adddup2(&files, from, to);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  SetAttributes(options, &attributes);
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> own = Pointers(options.environment);
  char* const* const env = options.environment.empty() ? environ : own.data();
  const auto spawn = options.search_path ? posix_spawnp : posix_spawn;
  pid_t pid = -1;
  const int error = spawn(&pid, argv[0], &files, &attributes, argv.data(), env);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return pid;
  return ErrnoStatus(
      error, "start " + (options.name.empty() ? words[0] : options.name));
}

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& words,
                                         const ProgramLimits& limits) {
  // The streams are memory files, so that neither process waits for the other.
  const UniqueFd in(memfd_create("in", MFD_CLOEXEC));
  const UniqueFd out(memfd_create("out", MFD_CLOEXEC));
  const UniqueFd err(memfd_create("err", MFD_CLOEXEC));
  if (!in || !out || !err) return ErrnoStatus(errno, "make a memfd");
  SLUICE_RETURN_IF_ERROR(WriteAll(in.get(), limits.input, "a memfd"));
  lseek(in.get(), 0, SEEK_SET);
  SLUICE_ASSIGN_OR_RETURN(const pid_t pid, StartProgram(words, in, out, err));
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

}  // namespace sluice
