#include "daemon/store/handed_listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace sluice::daemon {
namespace {

bool HasOption(const UniqueFd& socket, int option, int wanted) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(socket.get(), SOL_SOCKET, option, &value, &size) == 0 &&
         value == wanted;
}

// Returns the path at which a unix socket is bound; empty if it has none in the
// file system.
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

// Compares folders by file and not by name: a folder may have another name, and
// the socket's own file may be gone.
bool IsAt(const std::filesystem::path& bound,
          const std::filesystem::path& path) {
  std::error_code error;
  return bound.filename() == path.filename() &&
         std::filesystem::equivalent(bound.parent_path(), path.parent_path(),
                                     error);
}

}  // namespace

absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path) {
  if (sockets.empty()) return UniqueFd();
  const auto refused = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        fmt::format("{} from the program that started this one, which may hand "
                    "on one socket that "
                    "listens at {} (ListenSequentialPacket= of sluiced.socket)",
                    what, path));
  };
  if (sockets.size() > 1) {
    return refused(fmt::format("{} sockets ('{}', '{}') came", sockets.size(),
                               sockets[0].first, sockets[1].first));
  }
  auto& [name, socket] = sockets[0];
  if (!HasOption(socket, SO_DOMAIN, AF_UNIX) ||
      !HasOption(socket, SO_TYPE, SOCK_SEQPACKET) ||
      !HasOption(socket, SO_ACCEPTCONN, 1)) {
    return refused(fmt::format(
        "'{}' came, which is no listening SOCK_SEQPACKET socket,", name));
  }
  const std::filesystem::path bound = BoundTo(socket);
  if (!IsAt(bound, path)) {
    return refused(
        fmt::format("'{}' came, which listens at '{}',", name, bound.string()));
  }
  return std::move(socket);
}

bool IsSameSocket(const UniqueFd& a, const UniqueFd& b) {
  struct stat one, other;
  return fstat(a.get(), &one) == 0 && fstat(b.get(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace sluice::daemon
