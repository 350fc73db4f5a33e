#include "tests/bench/answerer.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>

#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::bench {
namespace {

// Answers on all sockets until a session ends.
void AnswerAll(const std::vector<UniqueFd>& sockets) {
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  for (const UniqueFd& socket : sockets) {
    epoll_event readable = {.events = EPOLLIN, .data = {.fd = socket.get()}};
    SLUICE_CHECK(
        epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &readable) == 0);
  }
  while (true) {
    std::array<epoll_event, 64> ready;
    const int count = epoll_wait(epoll.get(), ready.data(), ready.size(), -1);
    for (int i = 0; i < count; ++i) {
      const int socket = ready[i].data.fd;
      const auto message = wire::Receive(socket);
      SLUICE_CHECK_OK(message.status());
      if (!message->has_value()) return;
      const wire::Packet& request = (*message)->packet;
      wire::Packet answer;
      answer.set_id(request.id());
      if (request.request().has_lease()) {
        answer.mutable_reply()->mutable_granted()->set_lease_id(request.id());
      } else {
        answer.mutable_reply()->mutable_freed();
      }
      SLUICE_CHECK_OK(wire::Send(socket, answer));
    }
  }
}

}  // namespace

Answerer::Answerer(int sessions) {
  std::vector<UniqueFd> far_ends;
  for (int i = 0; i < sessions; ++i) {
    std::array<int, 2> ends;
    SLUICE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                            ends.data()) == 0);
    sockets_.emplace_back(ends[0]);
    far_ends.emplace_back(ends[1]);
  }
  child_ = testing::Child::Fork([&far_ends] { AnswerAll(far_ends); });
}

std::vector<int> Answerer::sockets() const {
  std::vector<int> sockets;
  for (const UniqueFd& socket : sockets_) sockets.push_back(socket.get());
  return sockets;
}

}  // namespace sluice::bench
