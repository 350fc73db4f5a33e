#include "tests/attacks/attackers.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/attacks/scene.h"

namespace sluice::testing {
namespace {

[[noreturn]] void Stay() {
  while (true) pause();
}

// Phrases by which refusals name the limit: a number of sessions or extents, a
// budget, a pool's size.
constexpr const char* kLimits[] = {"the limit is", "limit of", "the pool has",
                                   ", free "};

void MustNameTheLimit(const std::string& text) {
  const bool named = std::ranges::any_of(kLimits, [&](const char* limit) {
    return text.find(limit) != std::string::npos;
  });
  if (text.find('\n') != std::string::npos || !named) {
    fmt::print("a refusal does not name the limit: {}\n", text);
    std::fflush(stdout);
    _exit(4);
  }
}

std::optional<RawClient> Attach(const std::string& socket, int number) {
  auto client = RawClient::Connect(socket);
  if (!client.ok()) return std::nullopt;
  const auto welcome = client->Hello(fmt::format("evil{}", number));
  if (!welcome.ok()) return std::nullopt;
  return *std::move(client);
}

std::vector<RawClient> AttachMany(const std::string& socket, int count) {
  std::vector<RawClient> clients;
  for (int i = 0; i < count; ++i) {
    auto client = Attach(socket, i);
    if (!client) break;
    clients.push_back(*std::move(client));
  }
  if (clients.empty()) _exit(5);
  return clients;
}

// Reads a packet, if one has arrived. Returns whether it is a refusal, which
// must name the limit.
bool ReadsARefusal(int session) {
  const auto message = wire::Receive(session, MSG_DONTWAIT);
  if (!message.ok() || !message->has_value()) return false;
  const wire::Reply& reply = (*message)->packet.reply();
  if (!reply.has_error()) return false;
  MustNameTheLimit(reply.error().message());
  return true;
}

// Sends the requests in turn on all sessions and reads the answers, for ever.
// Prints "ready" after the first round, or, if `for_refusals`, after the first
// refusal.
[[noreturn]] void Flood(std::vector<RawClient> clients,
                        const std::vector<wire::Request>& requests,
                        bool for_refusals) {
  uint64_t id = 1'000'000;  // above the ids of each session's earlier requests
  bool said = false, may_say = !for_refusals;
  std::vector<pollfd> polled(clients.size());
  while (true) {
    wire::Packet packet;
    for (size_t i = 0; i < clients.size(); ++i) {
      *packet.mutable_request() = requests[id % requests.size()];
      packet.set_id(id++);
      wire::Send(clients[i].fd(), packet).IgnoreError();
      polled[i] = {.fd = clients[i].fd(), .events = POLLIN, .revents = 0};
    }
    if (may_say && !std::exchange(said, true)) SayReady();
    poll(polled.data(), polled.size(), 10);
    for (const pollfd& each : polled) {
      if ((each.revents & POLLIN) == 0) continue;
      if (ReadsARefusal(each.fd)) may_say = true;
    }
  }
}

// Leases `count` extents of the smallest size, or as many as it gets, and frees
// them. Returns their number.
int LeaseAndFree(RawClient& client, int count) {
  std::vector<uint64_t> leases;
  for (int i = 0; i < count; ++i) {
    const auto lease = client.Lease(wire::Lease::GPU, KiB(64));
    if (!lease.ok()) break;
    leases.push_back(lease->body.granted().lease_id());
  }
  for (const uint64_t lease : leases) client.Free(lease).status().IgnoreError();
  return static_cast<int>(leases.size());
}

}  // namespace

absl::Status SayHello(const RawClient& client, const std::string& job,
                      bool rank) {
  wire::Packet packet;
  packet.set_id(1);
  auto* hello = packet.mutable_request()->mutable_hello();
  hello->set_protocol(wire::kProtocols.newest);
  hello->set_observer(!rank);
  if (rank) {
    hello->set_job(job);
    hello->set_world_size(1);
    hello->set_local_ranks(1);
  }
  std::vector<UniqueFd> nodes;
  if (rank) nodes = GpuNodes(client.fd(), 0);
  std::vector<int> shown;
  for (const UniqueFd& node : nodes) shown.push_back(node.get());
  wire::Send(client.fd(), packet, shown).IgnoreError();
  // If the daemon closed the socket before it read the Hello, the first Receive
  // may report only the close, and the second returns the refusal.
  for (int i = 0; i < 2; ++i) {
    const auto message = wire::Receive(client.fd());
    if (!message.ok()) return message.status();
    if (!message->has_value()) continue;
    const wire::Error& error = (*message)->packet.reply().error();
    if (!(*message)->packet.reply().has_error()) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(error.code()),
                        error.message());
  }
  return absl::UnavailableError("the session was closed without a reply");
}

void TakeSessions(const std::string& socket, int wanted, bool ranks) {
  std::vector<RawClient> taken;
  for (int i = 0; i < wanted; ++i) {
    auto client = RawClient::Connect(socket);
    if (!client.ok()) break;
    const absl::Status welcome =
        SayHello(*client, fmt::format("evil{}", i), ranks);
    if (!welcome.ok()) {
      MustNameTheLimit(std::string(welcome.message()));
      break;
    }
    taken.push_back(*std::move(client));
  }
  SayReady();
  Stay();
}

void StayHalfOpen(const std::string& socket, int open) {
  std::vector<UniqueFd> half_open(open);
  for (size_t at = 0;; at = (at + 1) % half_open.size()) {
    half_open[at].Reset();
    auto fd = wire::Connect(socket);
    if (fd.ok()) half_open[at] = *std::move(fd);
    if (at + 1 == half_open.size()) SayReady();
  }
}

void AskForEverything(const std::string& socket, int sessions) {
  wire::Request query;
  query.mutable_query();
  Flood(AttachMany(socket, sessions), {query}, /*for_refusals=*/false);
}

void BeRefused(const std::string& socket, int sessions) {
  wire::Request lease;
  lease.mutable_lease()->set_bytes(uint64_t{1} << 40);
  Flood(AttachMany(socket, sessions), {lease}, /*for_refusals=*/true);
}

void NeverRead(const std::string& socket, int sessions, int repeats) {
  std::vector<RawClient> clients = AttachMany(socket, sessions);
  wire::Packet packet;
  packet.set_id(1000);
  packet.mutable_request()->mutable_lease()->set_bytes(
      static_cast<uint64_t>(KiB(64).count()));
  for (RawClient& client : clients) {
    for (int i = 0; i < repeats; ++i) {
      wire::Send(client.fd(), packet).IgnoreError();
    }
  }
  SayReady();
  Stay();
}

void LeaveSmallExtents(const std::string& socket, int count) {
  std::vector<RawClient> clients = AttachMany(socket, 1);
  LeaseAndFree(clients[0], count);
  SayReady();
  Stay();
}

void BeRefusedBesideKept(const std::string& socket, int count, int sessions,
                         const std::vector<Bytes>& sizes) {
  std::vector<RawClient> clients = AttachMany(socket, sessions);
  // The node may have too few descriptors for `count` extents.
  const int kept = LeaseAndFree(clients[0], count);
  fmt::print("{} extents are kept\n", kept);
  if (kept < count / 2) _exit(6);
  std::vector<wire::Request> requests;
  for (const Bytes size : sizes) {
    requests.emplace_back().mutable_lease()->set_bytes(size.size());
  }
  Flood(std::move(clients), requests, /*for_refusals=*/true);
}

void ParkLease(const std::string& socket) {
  std::vector<RawClient> clients = AttachMany(socket, 2);
  if (clients.size() < 2) _exit(5);
  if (!clients[0].Lease(wire::Lease::GPU, KiB(64)).ok()) _exit(6);
  const auto pool = GpuPool(socket, 0);
  if (!pool.ok()) _exit(7);
  wire::Packet packet;
  packet.set_id(1000);
  auto* lease = packet.mutable_request()->mutable_lease();
  lease->set_bytes(pool->total_bytes());
  lease->set_wait_ms(500'000);
  wire::Send(clients[1].fd(), packet).IgnoreError();
  SayReady();
  Stay();
}

void SendNoise(const std::string& socket) {
  std::mt19937 random(1);
  for (int i = 0;; ++i) {
    const auto fd = wire::Connect(socket);
    if (!fd.ok()) continue;
    std::string bytes(random() % 4096 + 1, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    bytes[0] = '\xff';  // no protobuf message begins with it
    send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i == 10) SayReady();
  }
}

}  // namespace sluice::testing
