#include "client/ctl/bundle/http_get.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"

namespace sluice::ctl {
namespace {

constexpr timeval kPatience = {5, 0};
constexpr size_t kMaxReplyBytes = size_t{64} << 20;

absl::StatusOr<UniqueFd> ConnectStream(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(path + " is too long for a socket");
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a unix socket");
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(fd.get(), SOL_SOCKET, option, &kPatience, sizeof(kPatience));
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
              sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "connect to " + path);
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& socket,
                                    const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const UniqueFd fd, ConnectStream(socket));
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return ErrnoStatus(errno, "ask " + socket);
  }
  std::string answer;  // ends with its connection
  std::array<char, 65536> piece;
  while (true) {
    const ssize_t got = recv(fd.get(), piece.data(), piece.size(), 0);
    if (got < 0) return ErrnoStatus(errno, "read from " + socket);
    if (got == 0 || answer.size() > kMaxReplyBytes) break;
    answer.append(piece.data(), static_cast<size_t>(got));
  }
  const size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 200") || body == std::string::npos) {
    return absl::UnavailableError(fmt::format(
        "{} answered: {}", socket, answer.substr(0, answer.find('\r'))));
  }
  return answer.substr(body + 4);
}

}  // namespace sluice::ctl
