// Ranks for tests: threads of one process, each with its own Gloo group, so
// that the tests use the real transport.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "client/torch/ranks/collectives.h"

namespace sluice::runtime {

// A socket that listens on a free port of the loopback device.
struct Listener {
  int fd = -1;
  int port = 0;
};

inline Listener ListenOnFreePort() {
  Listener listener;
  listener.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.fd, raw, size), 0);
  EXPECT_EQ(listen(listener.fd, 64), 0);
  EXPECT_EQ(getsockname(listener.fd, raw, &size), 0);
  listener.port = ntohs(address.sin_port);
  return listener;
}

// Runs `body` once per rank, each on its own thread, and joins them. A rank
// that cannot connect fails the test.
inline void RunRanks(int ranks, const std::function<void(Collectives&)>& body) {
  // A process has only one flight recorder of c10d, which races between groups.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const Listener listener =
      ranks > 1 ? ListenOnFreePort() : Listener{.fd = -1, .port = 1};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives::Options options{.device = at::kCPU,
                                   .rank = rank,
                                   .world_size = ranks,
                                   .master_port = listener.port,
                                   .timeout_s = 60,
                                   .master_listen_fd = listener.fd};
      auto connected = Collectives::Connect(options);
      ASSERT_TRUE(connected.ok()) << connected.status();
      body(**connected);
      ASSERT_TRUE((*connected)->Barrier().ok());  // rank 0 holds the store
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace sluice::runtime
