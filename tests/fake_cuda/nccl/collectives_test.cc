// Compares each collective with its definition; ranks are threads.
#include <numeric>

#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nccl/reduce.h"
#include "tests/fake_cuda/nccl/test_rank.h"

namespace sluice::fake_nccl {
namespace {

constexpr int kRanks = 3;

class Collectives : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    fake_cuda::fake_cuda_set("gpus=4,jitter_us=300,memory_mib=256");
    ASSERT_EQ(cuInit(0), 0);
  }
  static size_t Count() { return static_cast<size_t>(GetParam()); }

  // Returns what rank `rank` sends; all elements differ.
  static Floats Of(int rank, size_t count) {
    Floats values(count);
    std::iota(values.begin(), values.end(), 1.0F + 1000.0F * rank);
    return values;
  }
  static Floats Sum(size_t count) {
    Floats sum(count, 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Floats one = Of(rank, count);
      for (size_t i = 0; i < count; ++i) sum[i] += one[i];
    }
    return sum;
  }
  static Floats Block(const Floats& all, int block) {
    const auto begin =
        all.begin() + static_cast<std::ptrdiff_t>(Count()) * block;
    return {begin, begin + static_cast<std::ptrdiff_t>(Count())};
  }
};
// The parameter is the number of elements; 300'000 exceed a channel's buffer.
INSTANTIATE_TEST_SUITE_P(, Collectives, ::testing::Values(1, 1000, 300'000));

TEST_P(Collectives, AllReduceWorksInPlaceAndBetweenBuffers) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const from = rank.Make(Of(rank.rank, Count()));
    void* const to = rank.Make(Count());
    EXPECT_EQ(ncclAllReduce(from, to, Count(), kFloat32, kSum, communicator,
                            rank.stream),
              kSuccess);
    EXPECT_EQ(rank.Read(to, Count()), Sum(Count()));
    EXPECT_EQ(ncclAllReduce(from, from, Count(), kFloat32, kMax, communicator,
                            rank.stream),
              kSuccess);
    EXPECT_EQ(rank.Read(from, Count()), Of(kRanks - 1, Count()));
  };
  EXPECT_EQ(RunRanks(kRanks, WithOne(body)), "");
}

TEST_P(Collectives, ReduceWritesTheSumOnTheRootOnly) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const from = rank.Make(Of(rank.rank, Count()));
    void* const to = rank.Make(Floats(Count(), -1));
    EXPECT_EQ(ncclReduce(from, to, Count(), kFloat32, kSum, 1, communicator,
                         rank.stream),
              kSuccess);
    EXPECT_EQ(rank.Read(to, Count()),
              rank.rank == 1 ? Sum(Count()) : Floats(Count(), -1));
  };
  EXPECT_EQ(RunRanks(kRanks, WithOne(body)), "");
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsBlock) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const from = rank.Make(Of(rank.rank, kRanks * Count()));
    void* const to = rank.Make(Count());
    EXPECT_EQ(ncclReduceScatter(from, to, Count(), kFloat32, kSum, communicator,
                                rank.stream),
              kSuccess);
    EXPECT_EQ(rank.Read(to, Count()), Block(Sum(kRanks * Count()), rank.rank));
  };
  EXPECT_EQ(RunRanks(kRanks, WithOne(body)), "");
}

TEST_P(Collectives, AllGatherInPlaceGivesAllBlocks) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const all = rank.Make(kRanks * Count());
    void* const own = static_cast<float*>(all) + Count() * rank.rank;
    rank.Fill(own, Of(rank.rank, Count()));
    EXPECT_EQ(
        ncclAllGather(own, all, Count(), kFloat32, communicator, rank.stream),
        kSuccess);
    const Floats gathered = rank.Read(all, kRanks * Count());
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_EQ(Block(gathered, i), Of(i, Count()));
    }
  };
  EXPECT_EQ(RunRanks(kRanks, WithOne(body)), "");
}

TEST_P(Collectives, BroadcastGivesEveryRankTheRootsValues) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const bytes = rank.Make(Of(rank.rank, Count()));
    EXPECT_EQ(ncclBcast(bytes, Count(), kFloat32, 2, communicator, rank.stream),
              kSuccess);
    EXPECT_EQ(rank.Read(bytes, Count()), Of(2, Count()));
  };
  EXPECT_EQ(RunRanks(kRanks, WithOne(body)), "");
}

// c10d issues an all-to-all as a group of sends and receives.
TEST_P(Collectives, AllToAllEqualsAGroupOfSendsAndReceives) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const from = rank.Make(Of(rank.rank, kRanks * Count()));
    void* const to = rank.Make(kRanks * Count());
    void* const grouped = rank.Make(kRanks * Count());
    EXPECT_EQ(
        ncclAlltoAll(from, to, Count(), kFloat32, communicator, rank.stream),
        kSuccess);
    EXPECT_EQ(ncclGroupStart(), kSuccess);
    for (int peer = 0; peer < kRanks; ++peer) {
      const size_t at = Count() * peer;
      EXPECT_EQ(ncclSend(static_cast<float*>(from) + at, Count(), kFloat32,
                         peer, communicator, rank.stream),
                kSuccess);
      EXPECT_EQ(ncclRecv(static_cast<float*>(grouped) + at, Count(), kFloat32,
                         peer, communicator, rank.stream),
                kSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), kSuccess);
    const Floats received = rank.Read(to, kRanks * Count());
    EXPECT_EQ(rank.Read(grouped, kRanks * Count()), received);
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_EQ(Block(received, i), Block(Of(i, kRanks * Count()), rank.rank));
    }
  };
  EXPECT_EQ(RunRanks(kRanks, WithOne(body)), "");
}

TEST(Reduce, SumsInRankOrderAndRoundsOnce) {
  const float large = 1e8F, one = 1;
  const auto bytes = [](const auto& value) {
    return reinterpret_cast<const std::byte*>(&value);
  };
  float sum = 0;
  const float minus = -large;
  Reduce({bytes(large), bytes(one), bytes(minus)}, 1, kFloat32, kSum,
         reinterpret_cast<std::byte*>(&sum));
  EXPECT_EQ(sum, 0);  // (large + 1) - large
  Reduce({bytes(large), bytes(minus), bytes(one)}, 1, kFloat32, kSum,
         reinterpret_cast<std::byte*>(&sum));
  EXPECT_EQ(sum, 1);
  // In bfloat16, 256 + 1 + 1 is 258, but 256 if each sum is rounded.
  const uint16_t b256 = 0x4380, b1 = 0x3f80;
  uint16_t rounded = 0;
  Reduce({bytes(b256), bytes(b1), bytes(b1)}, 1, kBfloat16, kSum,
         reinterpret_cast<std::byte*>(&rounded));
  EXPECT_EQ(rounded, 0x4381);
}

}  // namespace
}  // namespace sluice::fake_nccl
