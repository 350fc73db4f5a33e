#include "tests/integration/daemon/lingering_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

namespace sluice::testing {

UniqueFd LingeringSocket(UniqueFd& reader) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  UniqueFd sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const linger minute = {.l_onoff = 1, .l_linger = 60};
  if (bind(listener.get(), generic, sizeof(address)) != 0 ||
      listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &size) != 0 ||
      connect(sender.get(), generic, sizeof(address)) != 0 ||
      setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &minute,
                 sizeof(minute)) != 0) {
    return {};
  }
  reader = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::vector<char> much(1 << 16, 'x');
  while (send(sender.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
  }
  return sender;
}

}  // namespace sluice::testing
