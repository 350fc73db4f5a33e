#include "tests/attacks/edge_attackers.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "proto/plan/codec.h"
#include "proto/wire.h"
#include "tests/attacks/scene.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/integration/daemon/lingering_socket.h"

namespace sluice::testing {
namespace {

constexpr int kTick = 10;  // in ms

std::vector<RawClient> ConnectMany(const std::string& socket, int count) {
  std::vector<RawClient> clients;
  for (int i = 0; i < count; ++i) {
    auto client = RawClient::Connect(socket);
    if (!client.ok()) break;
    if (!client->Hello(fmt::format("edge{}", i)).ok()) break;
    clients.push_back(*std::move(client));
  }
  if (clients.empty()) _exit(5);
  return clients;
}

// Sends `packet`, with `fd` if set, on each client and reads the answers, until
// the process is killed.
[[noreturn]] void SendForEver(std::vector<RawClient> clients,
                              wire::Packet packet, std::optional<int> fd,
                              bool fresh_ids) {
  const std::vector<int> fds = fd ? std::vector<int>{*fd} : std::vector<int>{};
  std::vector<pollfd> polled(clients.size());
  uint64_t id = 1000;
  for (bool first = true;; first = false) {
    for (size_t i = 0; i < clients.size(); ++i) {
      packet.set_id(fresh_ids ? ++id : id);
      wire::Send(clients[i].fd(), packet, fds).IgnoreError();
      polled[i] = {.fd = clients[i].fd(), .events = POLLIN, .revents = 0};
    }
    if (first) SayReady();
    poll(polled.data(), polled.size(), kTick);
    for (const pollfd& each : polled) {
      if ((each.revents & POLLIN) == 0) continue;
      wire::Receive(each.fd, MSG_DONTWAIT).status().IgnoreError();
    }
  }
}

plan::RankProfile ProfileOf(plan::Trace trace) {
  plan::RankProfile profile;
  profile.kinds[0].layers = 4;
  plan::SegmentKind kind;
  kind.name = "qkv.forward.full";
  kind.trace = std::move(trace);
  kind.seconds = 0.001;
  kind.executions = 8;
  profile.segments = {kind};
  plan::SkeletalClass input{
      .name = "layer_input", .bytes_per_layer = KiB(64), .must_swap = true};
  plan::SkeletalClass rest{
      .name = "ffn_up", .bytes_per_layer = KiB(64), .recompute_seconds = 0.01};
  profile.classes = {input, rest};
  profile.kinds[0].forward_layer_seconds = 0.1;
  profile.kinds[0].backward_layer_seconds = 0.2;
  return profile;
}

// Limits every later blocking call of this process to 20 ms: a timer's signal
// with an empty handler interrupts it.
void InterruptSlowCalls() {
  struct sigaction nothing = {};
  nothing.sa_handler = [](int) {};
  sigaction(SIGALRM, &nothing, nullptr);
  const timeval tick = {.tv_sec = 0, .tv_usec = 20'000};
  const itimerval ticks = {.it_interval = tick, .it_value = tick};
  setitimer(ITIMER_REAL, &ticks, nullptr);
}

}  // namespace

void SendLingering(const std::string& socket) {
  wire::Packet packet;
  packet.set_id(1);
  packet.mutable_request()->mutable_free()->set_lease_id(1);
  // If the daemon closes a descriptor first, this process's close of it lasts a
  // minute, unless the signal interrupts it.
  InterruptSlowCalls();
  std::deque<UniqueFd> readers, clients;
  for (int sent = 0;; ++sent) {
    auto client = wire::Connect(socket);
    const UniqueFd lingering = LingeringSocket(readers.emplace_back());
    if (client.ok() && lingering) {
      const std::array<int, 1> fds = {lingering.get()};
      wire::Send(client->get(), packet, fds).IgnoreError();
      clients.push_back(*std::move(client));
    }
    if (readers.size() > 200) readers.pop_front();
    if (clients.size() > 50) clients.pop_front();
    if (sent == 20) SayReady();
  }
}

void SubmitProfiles(const std::string& socket, int sessions,
                    const std::string& profile) {
  const auto memfd = wire::ToMemfd("profile", profile);
  if (!memfd.ok()) _exit(5);
  wire::Packet packet;
  packet.mutable_request()->mutable_submit_profile();
  SendForEver(ConnectMany(socket, sessions), packet, memfd->get(),
              /*fresh_ids=*/true);
}

void FloodHardProfiles(const std::string& socket, int sessions) {
  std::vector<RawClient> clients = ConnectMany(socket, sessions);
  const std::string hard = HardProfile();
  wire::Request submit;
  submit.mutable_submit_profile();
  for (int number = 0;; ++number) {
    RawClient& client = clients[static_cast<size_t>(number) % clients.size()];
    const auto profile = wire::ToMemfd("profile", Numbered(hard, number));
    if (!profile.ok()) _exit(6);
    // The daemon refuses a profile while too many are waiting.
    client.Call(submit, {profile->get()}).status().IgnoreError();
    if (number == sessions) SayReady();
  }
}

void Repeat(const std::string& socket, int sessions) {
  wire::Packet packet;
  packet.mutable_request()->mutable_lease()->set_bytes(
      static_cast<uint64_t>(KiB(64).count()));
  SendForEver(ConnectMany(socket, sessions), packet, std::nullopt,
              /*fresh_ids=*/false);
}

void SendHttp(const std::string& address, const std::string& begin,
              const std::string& piece) {
  std::string pieces;
  while (pieces.size() < (1 << 16)) pieces += piece;
  for (int i = 0;; ++i) {
    const UniqueFd fd = HttpConnect(address);
    if (i == 10) SayReady();
    if (!fd) continue;
    if (send(fd.get(), begin.data(), begin.size(), MSG_NOSIGNAL) < 0) continue;
    while (send(fd.get(), pieces.data(), pieces.size(), MSG_NOSIGNAL) > 0) {
    }
  }
}

void TrickleHttp(const std::string& address, int connections) {
  std::vector<UniqueFd> open(connections);
  for (bool first = true;; first = false) {
    for (UniqueFd& each : open) {
      if (!each || send(each.get(), "G", 1, MSG_NOSIGNAL) < 0) {
        each = HttpConnect(address);
      }
    }
    if (first) SayReady();
    poll(nullptr, 0, kTick);
  }
}

void IdleHttp(const std::string& address, int connections) {
  std::vector<UniqueFd> open(connections);
  for (bool first = true;; first = false) {
    for (UniqueFd& each : open) {
      char byte;
      const bool ended = !each || recv(each.get(), &byte, 1, MSG_DONTWAIT) == 0;
      if (ended) each = HttpConnect(address);
    }
    if (first) SayReady();
    poll(nullptr, 0, kTick);
  }
}

std::string SmallProfile() {
  plan::Trace trace;
  trace.buffers = {{0, 0, 3, KiB(64)}, {1, 1, 2, KiB(32)}};
  trace.end = 4;
  return plan::Encode(ProfileOf(trace));
}

std::string HardProfile() {
  constexpr int kBuffers = 20'000;
  std::mt19937 random(7);
  plan::Trace trace;
  for (int i = 0; i < kBuffers; ++i) {
    const auto lower = static_cast<int64_t>(random() % kBuffers);
    const auto length = 1 + static_cast<int64_t>(random() % 400);
    const auto size = 64 * (1 + static_cast<int64_t>(random() % 1000));
    trace.buffers.push_back({i, lower, lower + length, Bytes(size)});
  }
  trace.end = 2 * kBuffers;
  return plan::Encode(ProfileOf(trace));
}

std::string LongProfile() {
  constexpr int kBuffers = 100'000;
  plan::Trace trace;
  for (int i = 0; i < kBuffers; ++i) {
    trace.buffers.push_back({i, i, i + 2, KiB(1 + i % 7)});
  }
  trace.end = kBuffers + 2;
  return plan::Encode(ProfileOf(trace));
}

std::string Numbered(std::string profile, int number) {
  const std::string name = ".full";
  const size_t at = profile.find(name);
  return profile.replace(at, name.size(), fmt::format(".{}", number));
}

std::string BombProfile() {
  std::string bomb = "{\"segments\":[";
  while (bomb.size() < (4 << 20) - 10) bomb += "[],";
  return bomb + "[]]}";
}

}  // namespace sluice::testing
