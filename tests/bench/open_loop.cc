#include "tests/bench/open_loop.h"

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <deque>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/wire.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kPiece = MiB(1);
// Larger than every request id that RawClient itself has used.
constexpr uint64_t kFirstId = uint64_t{1} << 32;

struct Client {
  int fd;
  int gpu;
  std::deque<Clock::time_point> due;  // of pairs; the first is in progress
  uint64_t next_id = kFirstId;
};

void Send(Client& client, const wire::Request& request) {
  wire::Packet packet;
  packet.set_id(client.next_id++);
  *packet.mutable_request() = request;
  SLUICE_CHECK_OK(wire::Send(client.fd, packet));
}

void SendLease(Client& client) {
  wire::Request request;
  request.mutable_lease()->set_kind(wire::Lease::GPU);
  request.mutable_lease()->set_ordinal(client.gpu);
  request.mutable_lease()->set_bytes(kPiece.size());
  Send(client, request);
}

void SendFree(Client& client, uint64_t lease) {
  wire::Request request;
  request.mutable_free()->set_lease_id(lease);
  Send(client, request);
}

// Receives a packet. After a grant, requests to free the lease. Returns whether
// a pair ended.
bool Answered(Client& client) {
  auto message = wire::Receive(client.fd);
  SLUICE_CHECK_OK(message.status());
  SLUICE_CHECK(message->has_value());
  const wire::Packet& packet = (*message)->packet;
  if (packet.has_event()) return false;
  SLUICE_CHECK(!packet.reply().has_error());
  if (!packet.reply().has_granted()) return true;
  (*message)->fds.clear();  // like a client that unmaps: no extent stays in use
  SendFree(client, packet.reply().granted().lease_id());
  return false;
}

}  // namespace

std::vector<double> PairMillis(const OpenLoop& load,
                               const std::vector<int>& sockets) {
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  std::vector<Client> clients;
  for (size_t i = 0; i < sockets.size(); ++i) {
    clients.push_back(
        {.fd = sockets[i], .gpu = static_cast<int>(i % 8), .due = {}});
    epoll_event readable = {.events = EPOLLIN, .data = {.u64 = i}};
    SLUICE_CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, sockets[i], &readable) ==
                 0);
  }
  const auto gap =
      std::chrono::nanoseconds(1'000'000'000 / load.pairs_per_second);
  const Clock::time_point start = Clock::now();
  std::vector<double> millis;
  int began = 0, ended = 0;
  while (ended < load.pairs) {
    for (; began < load.pairs && start + began * gap <= Clock::now(); ++began) {
      Client& client = clients[began % clients.size()];
      client.due.push_back(start + began * gap);
      if (client.due.size() == 1) SendLease(client);
    }
    std::array<epoll_event, 64> ready;
    // Polls without sleeping, because pairs fall due faster than a sleep ends.
    const int count = epoll_wait(epoll.get(), ready.data(), ready.size(), 0);
    for (int i = 0; i < count; ++i) {
      Client& client = clients[ready[i].data.u64];
      if (!Answered(client)) continue;
      const std::chrono::duration<double, std::milli> took =
          Clock::now() - client.due.front();
      client.due.pop_front();
      if (++ended > load.pairs / 10) millis.push_back(took.count());
      if (!client.due.empty()) SendLease(client);
    }
  }
  return millis;
}

}  // namespace sluice::bench
