#include "daemon/metrics/http_socket.h"

#include <fmt/format.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {
namespace {

constexpr int kBacklog = 1024;
constexpr int kFlags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

sockaddr_storage BoundTo(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

in_port_t& PortIn(sockaddr_storage& address) {
  return address.ss_family == AF_INET6
             ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
             : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

int PortOf(int socket) {
  sockaddr_storage bound = BoundTo(socket);
  return ntohs(PortIn(bound));
}

// Whether `socket` listens at `address`, which may have port 0 for any.
bool ListensAt(const UniqueFd& socket, const addrinfo& address) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (!socket || getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens,
                            &size) != 0) {
    return false;
  }
  sockaddr_storage bound = BoundTo(socket.get()), wanted = {};
  memcpy(&wanted, address.ai_addr, address.ai_addrlen);
  if (bound.ss_family != wanted.ss_family) return false;
  if (PortIn(wanted) == 0) PortIn(wanted) = PortIn(bound);
  return listens != 0 && memcmp(&bound, &wanted, address.ai_addrlen) == 0;
}

absl::StatusOr<gid_t> GroupOf(const std::string& name) {
  std::vector<char> buffer(1 << 16);
  group entry = {};
  group* found = nullptr;
  getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return absl::NotFoundError(
        fmt::format("socket_group in [http] is '{}', and there is no such "
                    "group: make it (groupadd), or name another",
                    name));
  }
  return found->gr_gid;
}

}  // namespace

std::string HttpAddress::text() const {
  return host.find(':') == std::string::npos
             ? fmt::format("{}:{}", host, port)
             : fmt::format("[{}]:{}", host, port);
}

absl::StatusOr<HttpAddress> ParseHttpAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is no address to listen on: write ADDRESS:PORT, such as "
        "127.0.0.1:9435, or \"\" for none",
        listen));
  }
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return HttpAddress{host, port};
}

absl::StatusOr<UniqueFd> ListenOnTcp(HttpAddress& address, UniqueFd left) {
  const auto refused = [&](const char* why) {
    return absl::AlreadyExistsError(
        fmt::format("cannot listen on {} ({}): another program does, or the "
                    "address is not this machine's; free it, or choose another "
                    "in [http] listen, or \"\" for none",
                    address.text(), why));
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* all = nullptr;
  const int error = getaddrinfo(
      address.host.c_str(), std::to_string(address.port).c_str(), &hints, &all);
  if (error != 0) return refused(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(all, freeaddrinfo);
  // Only the first: a name that stands for several would be several sockets.
  if (ListensAt(left, *all)) {
    address.port = PortOf(left.get());
    return left;
  }
  UniqueFd socket(::socket(all->ai_family, kFlags, 0));
  // Not SO_REUSEPORT: the port would be shared with another listener.
  const int yes = 1;
  if (!socket ||
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) !=
          0 ||
      bind(socket.get(), all->ai_addr, all->ai_addrlen) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return refused(strerror(errno));
  }
  address.port = PortOf(socket.get());
  return socket;
}

absl::Status CheckGroup(const std::string& name) {
  return name.empty() ? absl::OkStatus() : GroupOf(name).status();
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
  UniqueFd socket(::socket(AF_UNIX, kFlags, 0));
  if (!socket) return ErrnoStatus(errno, "make a socket");
  unlink(path.c_str());  // a killed daemon's; the folder is ours, by its lock
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address),
           sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "listen at " + path);
  }
  // No client connects before `listen`, so the mode is in force for all.
  const auto own = [&]() -> absl::Status {
    if (chmod(path.c_str(), 0600) != 0) {
      return ErrnoStatus(errno, "chmod " + path);
    }
    if (group.empty()) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const gid_t gid, GroupOf(group));
    if (lchown(path.c_str(), static_cast<uid_t>(-1), gid) != 0) {
      return absl::PermissionDeniedError(fmt::format(
          "the daemon's user may not give {} to the group '{}' ({}): make it "
          "a member, or change socket_group in [http]",
          path, group, strerror(errno)));
    }
    if (chmod(path.c_str(), 0660) != 0) {
      return ErrnoStatus(errno, "chmod " + path);
    }
    return absl::OkStatus();
  };
  absl::Status status = own();
  if (status.ok() && listen(socket.get(), kBacklog) != 0) {
    status = ErrnoStatus(errno, "listen at " + path);
  }
  if (!status.ok()) {
    unlink(path.c_str());
    return status;
  }
  return socket;
}

}  // namespace sluice::daemon
