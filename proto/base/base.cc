// The functions of the small headers of this folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/cord.h"
#include "proto/base/clock.h"
#include "proto/base/file_text.h"
#include "proto/base/lost_output.h"
#include "proto/base/pidfd.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"
#include "proto/base/user_map.h"

namespace sluice {
namespace {

bool ReaderIsGone() {
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, /*timeout=*/0) == 1 && (out.revents & POLLERR) != 0;
}

void CheckOutput() {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed_before) return;
  const int error = errno;  // 0 if an earlier write failed
  if (error != EPIPE && !ReaderIsGone()) {
    std::fprintf(stderr, "error: cannot write to standard output: %s\n",
                 error != 0 ? std::strerror(error) : "is its disk full?");
    std::fflush(stderr);
  }
  _exit(1);
}

}  // namespace

void FailOnLostOutput() {
  std::signal(SIGPIPE, SIG_IGN);
  std::atexit(CheckOutput);
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
  // The offset of this process's time namespace. The file begins with
  // "monotonic SECONDS NANOSECONDS".
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

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::istringstream ProcessStat(const std::string& process) {
  const std::string text = TextOf("/proc/" + process + "/stat");
  const size_t name_end = text.rfind(')');  // a name may contain any character
  return std::istringstream(
      name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make(
    const std::string& prefix) {
  const char* base = std::getenv("TMPDIR");
  std::string path = fmt::format(
      "{}/{}-XXXXXX", base != nullptr && *base != '\0' ? base : "/tmp", prefix);
  if (mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(errno, "make a temporary folder " + path);
  }
  return TemporaryFolder(path);
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

UserMap UserMap::Of(std::string_view uid_map) {
  UserMap users{.mapped = 0};
  std::istringstream lines{std::string(uid_map)};
  for (uint64_t inside, outside, count; lines >> inside >> outside >> count;) {
    users.mapped += count;
  }
  return users;
}

UserMap UserMap::OfThisProcess() {
  UserMap users = Of(TextOf("/proc/self/uid_map"));
  std::istringstream overflow(TextOf("/proc/sys/kernel/overflowuid"));
  if (uint32_t uid; overflow >> uid) users.overflow_uid = uid;
  return users;
}

bool SpareFd::IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

UniqueFd SpareFd::Take(int listener) {
  spare_.Reset();
  return UniqueFd(
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void SpareFd::Refill() {
  if (!spare_) spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace sluice
