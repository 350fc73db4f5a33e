#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "proto/base/status.h"
#include "proto/base/unix_address.h"
#include "proto/wire.h"

namespace sluice::wire {
namespace {

constexpr int kBacklog = 128;
constexpr timeval kConnectTimeout = {5, 0};

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  if (const auto address = UnixAddress(path)) return *address;
  return absl::InvalidArgumentError(
      fmt::format("socket path '{}' has {} characters, it must have 1 to {}: "
                  "use a shorter directory",
                  path, path.size(), kLongestSocketPath));
}

absl::StatusOr<UniqueFd> MakeSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a unix socket");
  return fd;
}

absl::Status ConnectFault(int error, const std::string& path) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(
          fmt::format("no socket at {}: is sluiced running? start it, or name "
                      "its session socket with --socket or SLUICE_SOCKET",
                      path));
    case ECONNREFUSED:
      return absl::UnavailableError(fmt::format(
          "nobody serves {}: sluiced has ended; start it again", path));
    case EAGAIN:
      return absl::UnavailableError(
          fmt::format("sluiced at {} does not answer ({} s)", path,
                      kConnectTimeout.tv_sec));
    case EACCES:
      return absl::PermissionDeniedError(fmt::format(
          "no permission to connect to {}: ask for access to its group", path));
    case EPROTOTYPE:
      return absl::InvalidArgumentError(fmt::format(
          "{} is not a session socket (SOCK_SEQPACKET): name session.sock",
          path));
    default:
      return ErrnoStatus(error, fmt::format("connect to {}", path));
  }
}

// Removes the socket that a dead daemon left at `path`. AlreadyExists if `path`
// is anything else.
absl::Status RemoveStale(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        fmt::format("{} exists and is not a socket: remove it", path));
  }
  if (const auto live = Connect(path);
      live.ok() || !(absl::IsUnavailable(live.status()) ||
                     absl::IsNotFound(live.status()))) {
    return absl::AlreadyExistsError(fmt::format(
        "another daemon serves {}: stop it, or use another --runtime-dir",
        path));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, fmt::format("remove the stale socket {}", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> Listen(const std::string& path, int mode) {
  SLUICE_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  // The mode is set before bind, so that the socket never has a wider mode.
  if (fchmod(fd.get(), static_cast<mode_t>(mode)) != 0) {
    return ErrnoStatus(errno, "set the mode of a socket");
  }
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (bind(fd.get(), raw, sizeof(address)) != 0) {
    if (errno != EADDRINUSE) {
      return ErrnoStatus(errno, fmt::format("make the socket {}", path));
    }
    SLUICE_RETURN_IF_ERROR(RemoveStale(path));
    if (bind(fd.get(), raw, sizeof(address)) != 0) {
      return ErrnoStatus(errno, fmt::format("make the socket {}", path));
    }
  }
  // Set the mode again, because the umask may have narrowed it.
  if (chmod(path.c_str(), static_cast<mode_t>(mode)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, fmt::format("listen on {}", path));
  }
  return fd;
}

absl::StatusOr<UniqueFd> Connect(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  // A stopped daemon with a full backlog must not block its callers.
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectTimeout,
             sizeof(kConnectTimeout));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    return ConnectFault(errno, path);
  }
  constexpr timeval kForever = {};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kForever, sizeof(kForever));
  return fd;
}

}  // namespace sluice::wire
