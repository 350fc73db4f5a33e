// The receiving end of a notify socket, controlled by a test.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::testing {

class FakeStore {
 public:
  struct Message {
    std::string text;
    UniqueFd fd;
  };

  // Binds to `address`: a path, or '@' and an abstract name.
  explicit FakeStore(const std::string& address)
      : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.data(), address.size());
    if (address[0] == '@') name.sun_path[0] = '\0';
    SLUICE_CHECK(bind(socket_.get(), reinterpret_cast<sockaddr*>(&name),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                             address.size())) == 0);
  }

  bool IsReadable(int wait_ms = 2000) {
    pollfd ready = {socket_.get(), POLLIN, 0};
    return poll(&ready, 1, wait_ms) > 0;
  }

  // Returns the next message, or nullopt if none arrives within `wait_ms`.
  std::optional<Message> Next(int wait_ms = 2000) {
    if (!IsReadable(wait_ms)) return std::nullopt;
    std::array<char, 4096> text;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
    iovec data = {text.data(), text.size()};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    SLUICE_CHECK(got >= 0);
    Message message = {std::string(text.data(), static_cast<size_t>(got)), {}};
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&header)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
      message.fd = UniqueFd(fd);
    }
    return message;
  }

 private:
  UniqueFd socket_;
};

}  // namespace sluice::testing
