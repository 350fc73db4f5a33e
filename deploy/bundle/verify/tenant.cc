#include "deploy/bundle/verify/tenant.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/time/clock.h"
#include "deploy/bundle/verify/descendants.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

constexpr char kFilled[] = "filled";
constexpr char kSame[] = "same";

// Reads one line. DeadlineExceeded: no line by `until`. Internal: the other
// process has ended.
absl::StatusOr<std::string> ReadLine(const UniqueFd& from, absl::Time until) {
  std::string line;
  while (true) {
    pollfd ready = {.fd = from.get(), .events = POLLIN, .revents = 0};
    const auto patience = absl::ToInt64Milliseconds(until - absl::Now());
    const int said =
        patience <= 0 ? 0 : poll(&ready, 1, static_cast<int>(patience));
    if (said < 0 && errno == EINTR) continue;
    if (said <= 0) return absl::DeadlineExceededError("says nothing in time");
    char c = 0;
    const ssize_t got = read(from.get(), &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::InternalError("has ended: the log says why");
    if (c == '\n') return line;
    line += c;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tenant>> Tenant::Start(const Options& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "make a socket pair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t pid,
      Spawn({std::filesystem::read_symlink("/proc/self/exe").string(),
             kBeATenant, options.socket, options.job,
             std::to_string(options.gpu), std::to_string(options.ranks)},
            {.files = {{theirs.get(), STDIN_FILENO},
                       {theirs.get(), STDOUT_FILENO}},
             .signals = SpawnOptions::Signals::kDefault}));
  return std::unique_ptr<Tenant>(
      new Tenant(pid, std::move(ours), options.name));
}

Tenant::~Tenant() {
  if (pid_ != 0) Kill();
}

absl::Status Tenant::Await(const std::string& word, absl::Time until) {
  const auto line = ReadLine(socket_, until);
  if (line.ok() && *line == word) return absl::OkStatus();
  return absl::Status(
      line.ok() ? absl::StatusCode::kInternal : line.status().code(),
      fmt::format(
          "the rank of {} {}", name_,
          line.ok() ? "says: " + *line : std::string(line.status().message())));
}

absl::Status Tenant::AwaitFilled(absl::Time until) {
  return Await(kFilled, until);
}

absl::Status Tenant::FindSame(absl::Time until) {
  // A failure to send means that the rank has ended, which Await reports.
  send(socket_.get(), "?", 1, MSG_NOSIGNAL);
  return Await(kSame, until);
}

void Tenant::Kill() {
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, 0), nullptr, 0);
}

absl::Status Tenant::End(absl::Time until) {
  shutdown(socket_.get(), SHUT_WR);
  const auto line = ReadLine(socket_, until);
  if (absl::IsDeadlineExceeded(line.status())) {
    return absl::DeadlineExceededError(
        fmt::format("the rank of {} does not end in time", name_));
  }
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(fmt::format("the rank of {} {} by itself{}", name_,
                                         HowItEnded(status),
                                         line.ok() ? ": " + *line : ""));
}

}  // namespace sluice::verify
