#include "tests/integration/daemon/http.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "proto/base/unique_fd.h"

namespace sluice::testing {

std::string HttpGet(const std::string& address, const std::string& path) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(
      static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
    return "no connection";
  }
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
  if (write(fd.get(), request.data(), request.size()) < 0) return "no request";
  std::string answer;
  std::array<char, 4096> buffer;
  ssize_t got;
  while ((got = read(fd.get(), buffer.data(), buffer.size())) > 0) {
    answer.append(buffer.data(), static_cast<size_t>(got));
  }
  return answer;
}

}  // namespace sluice::testing
