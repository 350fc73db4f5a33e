#include "daemon/store/starter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int64_t kMostListed = 1 << 20, kMostPid = 1 << 22;
// Descriptors that the next daemon opens first, or systemd before exec.
constexpr int64_t kMargin = 128;
// The kernel limits $LISTEN_FDNAMES to 128 KiB, which must have room for a name
// and a colon of each descriptor, and for the names of sockets (4 KiB).
constexpr int64_t kMostNamed = ((128 << 10) - 4096) / (kMaxDescriptorName + 1);

std::optional<std::string> Take(const char* variable) {
  const char* found = std::getenv(variable);
  if (found == nullptr) return std::nullopt;
  std::string value = found;
  unsetenv(variable);
  return value;
}

// Reads and unsets the variable. Nullopt: it is not set. InvalidArgument: it is
// no decimal number of at most `most`.
absl::StatusOr<std::optional<int64_t>> TakeNumber(const char* variable,
                                                  int64_t most) {
  const auto text = Take(variable);
  if (!text) return std::nullopt;
  int64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto read = std::from_chars(text->data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || text->starts_with('-') ||
      number > most) {
    return absl::InvalidArgumentError(fmt::format(
        "${} is '{}', it must be a number of at most {}: it comes from the "
        "program that started this one",
        variable, *text, most));
  }
  return number;
}

absl::Status TakeDescriptors(Starter& into) {
  SLUICE_ASSIGN_OR_RETURN(const auto pid, TakeNumber("LISTEN_PID", kMostPid));
  SLUICE_ASSIGN_OR_RETURN(const auto count,
                          TakeNumber("LISTEN_FDS", kMostListed));
  const auto list = Take("LISTEN_FDNAMES");
  // With another pid, the descriptors are meant for another process.
  if (!pid || *pid != getpid() || !count || *count == 0) {
    return absl::OkStatus();
  }
  std::vector<std::string> names(*count, "unknown");
  if (list) names = absl::StrSplit(*list, ':');
  if (std::ssize(names) != *count) {
    return absl::InvalidArgumentError(fmt::format(
        "$LISTEN_FDNAMES has {} names for {} descriptors ($LISTEN_FDS)",
        names.size(), *count));
  }
  int fd = kFirstHandedOn;
  for (const std::string& name : names) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InvalidArgumentError(fmt::format(
          "descriptor {} ('{}') of $LISTEN_FDS is not open", fd, name));
    }
    UniqueFd owned(fd++);
    if (IsDescriptorName(name)) {
      into.stored.emplace(name, std::move(owned));
    } else {
      into.sockets.emplace_back(name, std::move(owned));
    }
  }
  return absl::OkStatus();
}

absl::Status TakeWatchdog(Starter& into) {
  SLUICE_ASSIGN_OR_RETURN(const auto pid, TakeNumber("WATCHDOG_PID", kMostPid));
  SLUICE_ASSIGN_OR_RETURN(const auto usec,
                          TakeNumber("WATCHDOG_USEC", int64_t{1} << 50));
  if (usec && *usec > 0 && (!pid || *pid == getpid())) {
    into.watchdog = absl::Microseconds(*usec);
  }
  return absl::OkStatus();
}

// Earlier keepers set $SLUICE_KEEPER="PID:PATH" instead.
absl::Status TakeKeeper(Starter& into) {
  const auto earlier = Take("SLUICE_KEEPER");
  const auto said = Take("SLUICE_KEEPER_PID");
  if (!said && !earlier) return absl::OkStatus();
  const std::string pid = said ? *said : earlier->substr(0, earlier->find(':'));
  if (!absl::SimpleAtoi(pid, &into.keeper.emplace()) || *into.keeper <= 0) {
    return absl::InvalidArgumentError(fmt::format(
        "$SLUICE_KEEPER_PID is '{}', it must be a process: it comes "
        "from the program that started this one",
        pid));
  }
  return absl::OkStatus();
}

bool HasOption(const UniqueFd& socket, int option, int wanted) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(socket.get(), SOL_SOCKET, option, &value, &size) == 0 &&
         value == wanted;
}

// Returns the socket's path; empty if it has none in the file system.
std::filesystem::path BoundTo(const UniqueFd& socket) {
  sockaddr_un address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) !=
      0) {
    return {};
  }
  constexpr size_t kHead = offsetof(sockaddr_un, sun_path);
  const size_t length = std::min<size_t>(size, sizeof(address));
  if (length <= kHead) return {};
  return std::string(address.sun_path,
                     strnlen(address.sun_path, length - kHead));
}

// Compares folders and not paths: a folder may have several names. The socket's
// own file may be gone, so only its name is compared.
bool IsAt(const std::filesystem::path& bound,
          const std::filesystem::path& path) {
  std::error_code error;
  return bound.filename() == path.filename() &&
         std::filesystem::equivalent(bound.parent_path(), path.parent_path(),
                                     error);
}

}  // namespace

bool IsDescriptorName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxDescriptorName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

absl::StatusOr<Starter> TakeFromStarter() {
  Starter starter;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return ErrnoStatus(errno, "ask for the limit of open files");
  }
  starter.open_files =
      static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kMostListed));
  starter.notify_socket = Take("NOTIFY_SOCKET").value_or("");
  SLUICE_RETURN_IF_ERROR(TakeDescriptors(starter));
  SLUICE_ASSIGN_OR_RETURN(starter.store_size,
                          TakeNumber("FDSTORE", int64_t{1} << 32));
  SLUICE_RETURN_IF_ERROR(TakeWatchdog(starter));
  SLUICE_RETURN_IF_ERROR(TakeKeeper(starter));
  return starter;
}

int64_t StoreCapacity(const Starter& starter, int64_t configured) {
  const int64_t most = std::min(starter.open_files - kMargin, kMostNamed);
  return std::clamp<int64_t>(starter.store_size.value_or(configured), 0,
                             std::max<int64_t>(most, 0));
}

absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path) {
  if (sockets.empty()) return UniqueFd();
  const auto refused = [&](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format(
        "the program that started sluiced handed on {}; it may hand "
        "on only one socket, which listens at {} "
        "(ListenSequentialPacket= of sluiced.socket)",
        what, path));
  };
  if (sockets.size() > 1) {
    return refused(fmt::format("{} sockets ('{}', '{}')", sockets.size(),
                               sockets[0].first, sockets[1].first));
  }
  auto& [name, socket] = sockets[0];
  if (!HasOption(socket, SO_DOMAIN, AF_UNIX) ||
      !HasOption(socket, SO_TYPE, SOCK_SEQPACKET) ||
      !HasOption(socket, SO_ACCEPTCONN, 1)) {
    return refused(
        fmt::format("'{}', which is no listening SOCK_SEQPACKET socket", name));
  }
  const std::filesystem::path bound = BoundTo(socket);
  if (!IsAt(bound, path)) {
    return refused(
        fmt::format("'{}', which listens at '{}'", name, bound.string()));
  }
  return std::move(socket);
}

bool IsSameSocket(const UniqueFd& a, const UniqueFd& b) {
  struct stat one, other;
  return fstat(a.get(), &one) == 0 && fstat(b.get(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace sluice::daemon
