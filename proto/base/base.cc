#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/cord.h"
#include "proto/base/clock.h"
#include "proto/base/pidfd.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"

namespace sluice {

std::string Printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

std::string PrintableLine(std::string text) {
  constexpr size_t kMost = 1000;
  if (text.size() > kMost) {
    text.resize(kMost);
    text += " ...";
  }
  return Printable(std::move(text));
}

std::string ShellWord(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+=,";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    c == '\'' ? quoted += "'\\''" : quoted += c;
  }
  return quoted + "'";
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

UniqueFd PidfdOf(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

std::optional<sockaddr_un> UnixAddress(const std::string& path) {
  if (path.empty() || path.size() > kLongestSocketPath) return std::nullopt;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return address;
}

absl::Time MonotonicClock::Now() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

double MonotonicSeconds() {
  return absl::ToDoubleSeconds(MonotonicClock().Now() - absl::UnixEpoch());
}

absl::Status ErrnoStatus(int error, std::string_view what) {
  return Mark(absl::ErrnoToStatus(error, std::string(what)),
              ShortageOfErrno(error));
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(
      status.code(),
      fmt::format("{}: {}", context, std::string(status.message())));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

void CheckFailed(const char* file, int line, const char* what,
                 const std::string& detail) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s %s\n", file, line, what,
               detail.c_str());
  std::abort();
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<UniqueFd> UniqueFd::Duplicate() const {
  const int copy = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return ErrnoStatus(errno, "duplicate a file descriptor");
  return UniqueFd(copy);
}

}  // namespace sluice
