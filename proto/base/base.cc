#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "proto/base/clock.h"
#include "proto/base/file_text.h"
#include "proto/base/pidfd.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"

namespace sluice {

namespace {

// Returns the length in bytes of the first character of `text`, or 0 if that
// character is a control character or invalid UTF-8.
size_t PrintableAt(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < size) return 0;
  uint32_t code = byte(0) & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  // The least code of a character of 2, 3 and 4 bytes. Codes below 0xa0 are
  // control characters; an encoding longer than needed is invalid.
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code >= kLeast[size] && code <= 0x10ffff && !surrogate ? size : 0;
}

}  // namespace

std::string Printable(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = PrintableAt(std::string_view(text).substr(at));
    if (size == 0) text[at] = '?';
    at += std::max<size_t>(size, 1);
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

absl::Status PidfdFault(int error, std::string_view what) {
  if (error != EPERM && error != EACCES && error != ENOSYS) {
    return ErrnoStatus(error, what);
  }
  return absl::PermissionDeniedError(fmt::format(
      "{}: pidfd_open, which shows when a process ends, is refused here ({}): "
      "allow pidfd_open and pidfd_send_signal in the container's or sandbox's "
      "seccomp profile (in Linux since 5.3)",
      what, std::strerror(error)));
}

std::optional<sockaddr_un> UnixAddress(const std::string& path) {
  if (path.empty() || path.size() > kLongestSocketPath) return std::nullopt;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  return address;
}

absl::Time MonotonicClock::Now() const {
  // The offset of this process's time namespace, from a line "monotonic SECONDS
  // NANOSECONDS".
  static const absl::Duration added = [] {
    std::istringstream text(TextOf("/proc/self/timens_offsets"));
    std::string clock;
    int64_t seconds = 0, nanoseconds = 0;
    text >> clock >> seconds >> nanoseconds;
    return absl::Seconds(seconds) + absl::Nanoseconds(nanoseconds);
  }();
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now) - added;
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
