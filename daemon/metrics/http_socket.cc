#include "daemon/metrics/http_socket.h"

#include <fmt/format.h>
#include <grp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {
namespace {

constexpr int kBacklog = 1024;
constexpr int kFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

using HostPort = std::pair<std::string, std::string>;  // host, port

HostPort HostPortOf(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> port = {};
  getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {host.data(), port.data()};
}

HostPort BoundTo(const UniqueFd& socket) {
  sockaddr_storage address = {};
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  getsockname(socket.get(), raw, &size);
  return HostPortOf(raw, size);
}

// Returns -1 for an empty name: chown then leaves the group unchanged.
absl::StatusOr<gid_t> GroupOf(const std::string& name) {
  if (name.empty()) return static_cast<gid_t>(-1);
  std::array<char, 1 << 16> buffer;
  group entry = {};
  group* found = nullptr;
  getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return absl::NotFoundError(
      fmt::format("socket_group in [http] is '{}', and there is no such group: "
                  "make it (groupadd), or name another",
                  name));
}

}  // namespace

absl::Status CheckHttpSockets(const std::string& listen,
                              const std::string& group) {
  const size_t colon = listen.rfind(':');
  uint32_t port = 0;
  if (!listen.empty() &&
      (colon == listen.npos || colon == 0 ||
       !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port > 65535)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no address to listen on: write ADDRESS:PORT, such as "
        "127.0.0.1:9435, or \"\" for none",
        listen));
  }
  return GroupOf(group).status();
}

absl::StatusOr<UniqueFd> ListenOnTcp(std::string& listen, UniqueFd left) {
  const auto refused = [&](const char* why) {
    return absl::AlreadyExistsError(
        fmt::format("cannot listen on {} ({}): another program does, or the "
                    "address is not this machine's; free it, or choose another "
                    "in [http] listen, or \"\" for none",
                    listen, why));
  };
  const size_t colon = listen.rfind(':');
  const bool bracketed = listen.front() == '[' && listen[colon - 1] == ']';
  const std::string host =
      bracketed ? listen.substr(1, colon - 2) : listen.substr(0, colon);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* all = nullptr;
  const int error = getaddrinfo(host.c_str(), &listen[colon + 1], &hints, &all);
  if (error != 0) return refused(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(all, freeaddrinfo);
  // Listens on the first address only: several addresses would need several
  // sockets.
  const auto& [own, port] = HostPortOf(all->ai_addr, all->ai_addrlen);
  const auto& [bound, bound_port] = BoundTo(left);
  UniqueFd socket = std::move(left);
  if (!socket || bound != own || (port != "0" && bound_port != port)) {
    socket = UniqueFd(::socket(all->ai_family, kFlags, 0));
    // Not SO_REUSEPORT: another process could then listen on the same port.
    const int yes = 1;
    if (!socket ||
        setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) !=
            0 ||
        bind(socket.get(), all->ai_addr, all->ai_addrlen) != 0 ||
        ::listen(socket.get(), kBacklog) != 0) {
      return refused(strerror(errno));
    }
  }
  listen.replace(colon + 1, listen.npos, BoundTo(socket).second);
  return socket;
}

absl::StatusOr<UniqueFd> ListenOnUnix(const std::string& path,
                                      const std::string& group) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(fmt::format(
        "the socket path {} is longer than {} bytes: choose a shorter "
        "--runtime-dir",
        path, kLongestSocketPath));
  }
  SLUICE_ASSIGN_OR_RETURN(const gid_t gid, GroupOf(group));
  UniqueFd socket(::socket(AF_UNIX, kFlags, 0));
  unlink(path.c_str());  // left by a killed daemon; the folder is locked
  // The mode is set before `listen`, and no client can connect before that.
  if (!socket ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address),
           sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "listen at " + path);
  }
  absl::Status status;
  if (lchown(path.c_str(), static_cast<uid_t>(-1), gid) != 0) {
    status = absl::PermissionDeniedError(fmt::format(
        "the daemon's user may not give {} to the group '{}' ({}): make it a "
        "member, or change socket_group in [http]",
        path, group, strerror(errno)));
  } else if (chmod(path.c_str(), group.empty() ? 0600 : 0660) != 0 ||
             listen(socket.get(), kBacklog) != 0) {
    status = ErrnoStatus(errno, "listen at " + path);
  }
  if (status.ok()) return socket;
  unlink(path.c_str());
  return status;
}

}  // namespace sluice::daemon
