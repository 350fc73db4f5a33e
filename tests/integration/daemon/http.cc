#include "tests/integration/daemon/http.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>

namespace sluice::testing {
namespace {

UniqueFd ConnectUnix(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof(to.sun_path) - 1);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return {};
  }
  return fd;
}

UniqueFd ConnectTcp(const std::string& address) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(
      static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return {};
  }
  return fd;
}

}  // namespace

UniqueFd HttpConnect(const std::string& address) {
  return address.starts_with('/') ? ConnectUnix(address) : ConnectTcp(address);
}

std::string HttpRest(int fd) {
  std::string answer;
  std::array<char, 4096> buffer;
  ssize_t got;
  while ((got = read(fd, buffer.data(), buffer.size())) > 0) {
    answer.append(buffer.data(), static_cast<size_t>(got));
  }
  return answer;
}

std::string HttpAsk(const std::string& address, const std::string& request) {
  const UniqueFd fd = HttpConnect(address);
  if (!fd) return "no connection";
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return "no request";
  }
  return HttpRest(fd.get());
}

std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpAsk(
      address, fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
}

}  // namespace sluice::testing
