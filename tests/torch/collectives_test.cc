#include "client/torch/ranks/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "client/torch/memory/region_allocator.h"
#include "proto/base/peer_fault.h"
#include "tests/torch/rank_threads.h"

namespace sluice::runtime {
namespace {

using ::testing::HasSubstr;

TEST(Collectives, OneRankNeedsNoNetwork) {
  RunRanks(1, [](Collectives& ranks) {
    at::Tensor tensor = at::full({3}, 2.0);
    EXPECT_TRUE(ranks.SumAll(tensor).ok());
    EXPECT_EQ(tensor.sum().item<double>(), 6);
    const at::Tensor received = at::empty({3}, tensor.options());
    EXPECT_TRUE(ranks.AllToAll(received, {3}, tensor, {3}).ok());
    EXPECT_TRUE(received.equal(tensor));
  });
}

TEST(Collectives, SumsInEveryTypeThatTrainingUses) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    RunRanks(3, [&](Collectives& ranks) {
      at::Tensor tensor = at::full({5}, ranks.rank() + 1, type);
      ASSERT_TRUE(ranks.SumAll(tensor).ok());
      EXPECT_EQ(tensor.sum().item<double>(), 30);
      at::Tensor to_one = at::full({5}, ranks.rank() + 1, type);
      ASSERT_TRUE(ranks.SumTo(to_one, 1).ok());
      if (ranks.rank() == 1) {
        EXPECT_EQ(to_one.sum().item<double>(), 30);
      }
    });
  }
}

TEST(Collectives, SumsPartsToTheirRanksAndGathersThem) {
  RunRanks(3, [](Collectives& ranks) {
    at::Tensor tensor = at::full({6}, ranks.rank() + 1, at::kFloat);
    ASSERT_TRUE(ranks.BeginSumScatter(tensor).ok());
    ASSERT_TRUE(ranks.AwaitBegun().ok());
    EXPECT_EQ(tensor.narrow(0, 2 * ranks.rank(), 2).sum().item<float>(), 12);
    ASSERT_TRUE(ranks.BeginGather(tensor).ok());
    ASSERT_TRUE(ranks.AwaitBegun().ok());
    EXPECT_EQ(tensor.sum().item<float>(), 36);
  });
}

TEST(Collectives, BroadcastsBf16) {
  RunRanks(2, [](Collectives& ranks) {
    at::Tensor tensor = at::full({7}, ranks.rank(), at::kBFloat16);
    ASSERT_TRUE(ranks.Broadcast(tensor, 1).ok());
    EXPECT_EQ(tensor.sum().item<double>(), 7);
  });
}

// Rank s sends s * p elements of value 10 s + p to rank p.
TEST(Collectives, UnevenAndEmptyAllToAllArrives) {
  RunRanks(3, [](Collectives& ranks) {
    const int64_t me = ranks.rank();
    std::vector<at::Tensor> pieces;
    std::vector<int64_t> sent, received;
    for (int64_t p = 0; p < 3; ++p) {
      sent.push_back(me * p);
      received.push_back(p * me);
    }
    const at::Tensor send = at::empty({me * 3}, at::kBFloat16);
    for (int64_t p = 0, at = 0; p < 3; at += sent[p++]) {
      send.narrow(0, at, sent[p]).fill_(10 * me + p);
    }
    const at::Tensor receive = at::empty({me * 3}, at::kBFloat16);
    ASSERT_TRUE(ranks.AllToAll(receive, received, send, sent).ok());
    for (int64_t s = 0, at = 0; s < 3; at += received[s++]) {
      EXPECT_TRUE(receive.narrow(0, at, received[s])
                      .eq(10 * s + me)
                      .all()
                      .item<bool>());
    }
  });
}

// Gloo copies through its own memory, so reductions work with a full HBM.
TEST(Collectives, TakeNoMemoryOfTheRegion) {
  const Bytes size = MiB(1);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, size.size()));
  {
    RegionAllocator region(at::kCPU, memory, size);
    region.Arm();
    RunRanks(2, [&](Collectives& ranks) {
      at::Tensor sums = at::full({20000}, 1.0);
      at::Tensor mine = at::full({20000}, 1.0);
      ASSERT_TRUE(ranks.Barrier().ok());
      if (ranks.rank() == 0) region.ResetPeak();
      ASSERT_TRUE(ranks.Barrier().ok());
      const Bytes before = region.stats().used;
      ASSERT_TRUE(ranks.SumAll(sums).ok());
      ASSERT_TRUE(ranks.SumTo(sums, 0).ok());
      ASSERT_TRUE(ranks.Broadcast(sums, 1).ok());
      const std::vector<int64_t> half = {10000, 10000};
      ASSERT_TRUE(ranks.AllToAll(mine, half, sums, half).ok());
      // Allows for the few bytes of a barrier.
      EXPECT_LE(region.stats().peak - before, Bytes(1024));
      ASSERT_TRUE(ranks.Barrier().ok());
    });
    region.Disarm();
  }
  std::free(memory);
}

TEST(Collectives, RefusesATensorWithHoles) {
  RunRanks(2, [](Collectives& ranks) {
    at::Tensor holes = at::arange(8, at::kFloat).view({4, 2}).select(1, 0);
    EXPECT_EQ(ranks.SumAll(holes).code(), absl::StatusCode::kInvalidArgument);
  });
}

// Gloo would read a GPU's address on the CPU.
TEST(Collectives, RefusesTensorsThatAreNotOnTheCpu) {
  RunRanks(2, [](Collectives& ranks) {
    at::Tensor elsewhere = at::empty({4}, at::TensorOptions(at::kMeta));
    const absl::Status status = ranks.SumAll(elsewhere);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("on meta"));
  });
  const auto refused = Collectives::Connect({.device = at::Device(at::kCUDA, 1),
                                             .rank = 1,
                                             .world_size = 2,
                                             .master_port = 9});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("cuda:1"));
}

TEST(Collectives, RefusesARankOutsideTheWorld) {
  const auto refused = Collectives::Connect(
      {.device = at::kCPU, .rank = 2, .world_size = 2, .master_port = 1});
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("rank 2 of world size 2"));
}

TEST(Collectives, AnAbsentRankIsReportedInOneLine) {
  const auto lonely = Collectives::Connect({.device = at::kCPU,
                                            .rank = 1,
                                            .world_size = 2,
                                            .master_port = 9,
                                            .timeout_s = 1});
  EXPECT_EQ(lonely.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(lonely.status().message());
  EXPECT_THAT(message, HasSubstr("127.0.0.1:9"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

// The peer is a process that kills itself after a barrier.
TEST(CollectivesDeath, APeersDeathIsReportedAndDoesNotHang) {
  // Gloo writes without MSG_NOSIGNAL. sluice-train ignores SIGPIPE, too.
  std::signal(SIGPIPE, SIG_IGN);
  const Listener listener = ListenOnFreePort();
  Collectives::Options options{.device = at::kCPU,
                               .rank = 1,
                               .world_size = 2,
                               .master_port = listener.port,
                               .timeout_s = 60};
  const pid_t child = fork();
  if (child == 0) {
    close(listener.fd);
    auto connected = Collectives::Connect(options);
    if (connected.ok()) (void)(*connected)->Barrier();
    raise(SIGKILL);
  }
  options.rank = 0;
  options.master_listen_fd = listener.fd;
  auto connected = Collectives::Connect(options);
  ASSERT_TRUE(connected.ok()) << connected.status();
  ASSERT_TRUE((*connected)->Barrier().ok());
  at::Tensor tensor = at::full({5}, 1.0);
  const absl::Status status = (*connected)->SumAll(tensor);
  EXPECT_TRUE(IsCausedByPeer(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("sum over ranks of 20 B on rank 0 of 2 failed"));
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace sluice::runtime
