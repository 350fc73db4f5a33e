// Tests that violations of NCCL's rules are found, whatever the timing:
// sequences that differ, communicators that cross, buffers that race, wrong
// joins and arguments. Also tests that one rank's abort ends all operations.
#include <gmock/gmock.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nccl/test_rank.h"

namespace sluice::fake_nccl {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr size_t kCount = 16;

// The parameter is the rank that is late.
class Order : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    fake_cuda::fake_cuda_set("gpus=4,memory_mib=512");
    ASSERT_EQ(cuInit(0), 0);
  }
  static void BeLate(const TestRank& rank) {
    if (rank.rank == GetParam()) usleep(50'000);
  }
  static Result SumAll(TestRank& rank, Communicator* communicator,
                       size_t count = kCount) {
    void* const bytes = rank.Make(count);
    return ncclAllReduce(bytes, bytes, count, kFloat32, kSum, communicator,
                         rank.stream);
  }
  static Result Send(TestRank& rank, Communicator* communicator,
                     size_t count = kCount) {
    return ncclSend(rank.Make(count), count, kFloat32, 1 - rank.rank,
                    communicator, rank.stream);
  }
  static Result Receive(TestRank& rank, Communicator* communicator,
                        size_t count = kCount) {
    return ncclRecv(rank.Make(count), count, kFloat32, 1 - rank.rank,
                    communicator, rank.stream);
  }
  // Runs `join` on two ranks with one unique id. Returns the findings.
  static std::string JoinTwo(
      const std::function<void(TestRank&, const UniqueId&)>& join) {
    UniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), kSuccess);
    return RunRanks(2, [&](TestRank& rank) {
      BeLate(rank);
      join(rank, id);
    });
  }
  static void ExpectInvalidJoin(int ranks, const UniqueId& id, int rank) {
    Communicator* made = nullptr;
    EXPECT_EQ(ncclCommInitRank(&made, ranks, id, rank), kInvalidUsage);
  }
  // Both ranks' communicators report the failure, whichever rank found it.
  static void BothFail(TestRank&, Communicator* communicator) {
    EXPECT_EQ(TestRank::AwaitError(communicator), kInvalidUsage);
  }
};
INSTANTIATE_TEST_SUITE_P(, Order, ::testing::Values(0, 1));

TEST_P(Order, DifferentOperationsAreFound) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    BeLate(rank);
    if (rank.rank == 0) {
      SumAll(rank, communicator);
    } else {
      void* const bytes = rank.Make(kCount);
      ncclBcast(bytes, kCount, kFloat32, 0, communicator, rank.stream);
    }
    BothFail(rank, communicator);
  };
  const std::string found = RunRanks(2, WithOne(body));
  EXPECT_THAT(found, HasSubstr("rank 0 issues AllReduce of 16 float32 (sum)"));
  EXPECT_THAT(found, HasSubstr("Broadcast of 16 float32 at root 0"));
}

TEST_P(Order, DifferentCountsTypesReductionsAndRootsAreFound) {
  for (int kind = 0; kind < 4; ++kind) {
    const auto body = [kind](TestRank& rank, Communicator* communicator) {
      BeLate(rank);
      const bool odd = rank.rank == 1;
      void* const bytes = rank.Make(kCount);
      ncclReduce(bytes, bytes, kind == 0 && odd ? kCount - 1 : kCount,
                 kind == 1 && odd ? kInt32 : kFloat32,
                 kind == 2 && odd ? kMax : kSum, kind == 3 && odd ? 1 : 0,
                 communicator, rank.stream);
      BothFail(rank, communicator);
    };
    EXPECT_THAT(RunRanks(2, WithOne(body)),
                HasSubstr("root 0, rank 1 Reduce of"))
        << kind;
  }
}

TEST_P(Order, ASendAndAReceiveOfDifferentSizesAreFound) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    BeLate(rank);
    if (rank.rank == 0) {
      Send(rank, communicator, 4);
    } else {
      Receive(rank, communicator, 5);
    }
    BothFail(rank, communicator);
  };
  EXPECT_THAT(RunRanks(2, WithOne(body)),
              AllOf(HasSubstr("Send of 4 float32 to rank 1"),
                    HasSubstr("Recv of 5 float32 from rank 0")));
}

TEST_P(Order, TwoSendsThatWaitForEachOtherAreFound) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    BeLate(rank);
    if (Send(rank, communicator) == kSuccess) Receive(rank, communicator);
    BothFail(rank, communicator);
  };
  EXPECT_THAT(RunRanks(2, WithOne(body)), HasSubstr("Send of 16 float32"));
}

TEST_P(Order, CrossedCommunicatorsAreFound) {
  const auto body = [](TestRank& rank, Communicator* one, Communicator* two) {
    BeLate(rank);
    const bool first = rank.rank == 0;
    if (SumAll(rank, first ? one : two) == kSuccess) {
      SumAll(rank, first ? two : one);
    }
    BothFail(rank, one);
    BothFail(rank, two);
  };
  EXPECT_THAT(RunRanks(2, WithTwo(body)), HasSubstr("operations of communic"));
}

// Neither rank gets past its wait, so the first operation of each must suffice
// for the finding.
TEST_P(Order, CrossedCommunicatorsAreFoundIfRanksWaitAfterEachOperation) {
  const auto body = [](TestRank& rank, Communicator* one, Communicator* two) {
    BeLate(rank);
    const bool first = rank.rank == 0;
    SumAll(rank, first ? one : two);
    rank.Wait();
    SumAll(rank, first ? two : one);
    BothFail(rank, one);
  };
  EXPECT_THAT(RunRanks(2, WithTwo(body)), HasSubstr("before that"));
}

TEST_P(Order, MessagesCrossedWithAnotherCommunicatorAreFound) {
  const auto body = [](TestRank& rank, Communicator* one, Communicator* two) {
    BeLate(rank);
    if (rank.rank == 0) {
      Send(rank, one);
      SumAll(rank, two);
    } else {
      SumAll(rank, two);
      Receive(rank, one);
    }
    BothFail(rank, one);
  };
  EXPECT_THAT(RunRanks(2, WithTwo(body)), HasSubstr("Send of 16 float32"));
}

TEST_P(Order, TheSameOrderOfTwoCommunicatorsIsNoFinding) {
  const auto body = [](TestRank& rank, Communicator* one, Communicator* two) {
    BeLate(rank);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(SumAll(rank, i % 3 == 0 ? one : two), kSuccess);
      EXPECT_EQ(ncclGroupStart(), kSuccess);
      EXPECT_EQ(Send(rank, one), kSuccess);
      EXPECT_EQ(Receive(rank, one), kSuccess);
      EXPECT_EQ(ncclGroupEnd(), kSuccess);
    }
    rank.Wait();
    Result error = kInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(one, &error), kSuccess);
    EXPECT_EQ(error, kSuccess);
  };
  EXPECT_EQ(RunRanks(2, WithTwo(body)), "");
}

TEST_P(Order, AnUnorderedFillBeforeACollectiveIsARace) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    BeLate(rank);
    StreamPointer other = nullptr;
    EXPECT_EQ(cuStreamCreate(&other, kStreamNonBlocking), 0);
    void* const from = rank.Make(kCount);
    void* const to = rank.Make(kCount);
    rank.Fill(from, Floats(kCount, 1), rank.rank == 0 ? other : nullptr);
    EXPECT_EQ(ncclAllReduce(from, to, kCount, kFloat32, kSum, communicator,
                            rank.stream),
              kSuccess);
    cuStreamSynchronize(other);
    EXPECT_EQ(cuStreamDestroy_v2(other), 0);
  };
  EXPECT_THAT(RunRanks(2, WithOne(body)),
              HasSubstr("race: read after write: AllReduce of 16 float32"));
}

TEST_P(Order, AnUnorderedFillAfterACollectiveIsARace) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    StreamPointer other = nullptr;
    EXPECT_EQ(cuStreamCreate(&other, kStreamNonBlocking), 0);
    void* const bytes = rank.Make(kCount);
    EXPECT_EQ(ncclAllReduce(bytes, bytes, kCount, kFloat32, kSum, communicator,
                            rank.stream),
              kSuccess);
    if (rank.rank == GetParam()) rank.Fill(bytes, Floats(kCount, 1), other);
    cuStreamSynchronize(other);
    EXPECT_EQ(cuStreamDestroy_v2(other), 0);
  };
  EXPECT_THAT(RunRanks(2, WithOne(body)), HasSubstr("a fill on stream"));
}

TEST_P(Order, AnAbortEndsTheOtherRanksOperations) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    if (rank.rank == GetParam()) {
      BeLate(rank);
      ncclCommAbort(communicator);
      return;
    }
    SumAll(rank, communicator);
    EXPECT_EQ(TestRank::AwaitError(communicator), kRemoteError);
    EXPECT_THAT(ncclGetLastError(communicator), HasSubstr("which has aborted"));
    rank.Wait();
    EXPECT_EQ(ncclCommAbort(communicator), kSuccess);
  };
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  EXPECT_EQ(RunRanks(2, [&](TestRank& rank) { body(rank, rank.Join(id)); }),
            "");
}

// A rank aborts when the daemon reports a dead peer. Nothing else ends the
// rank's operations.
TEST_P(Order, AnAbortEndsRunningAndQueuedOperations) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kSuccess);
  const auto body = [&](TestRank& rank) {
    Communicator* const communicator = rank.Join(id);
    if (rank.rank != GetParam()) {
      EXPECT_EQ(SumAll(rank, communicator), kSuccess);
      // The first sum may have seen the other rank's abort by now.
      EXPECT_THAT(SumAll(rank, communicator), AnyOf(kSuccess, kRemoteError));
    }
    EXPECT_EQ(ncclCommAbort(communicator), kSuccess);
    rank.Wait();
  };
  EXPECT_EQ(RunRanks(2, body), "");
}

TEST_P(Order, TwoRanksOnOneGpuAreFound) {
  const std::string found = JoinTwo([](TestRank& rank, const UniqueId& id) {
    device::cuda::Context first = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&first, 0), 0);
    EXPECT_EQ(cuCtxPushCurrent_v2(first), 0);
    ExpectInvalidJoin(2, id, rank.rank);
    EXPECT_EQ(cuCtxPopCurrent_v2(nullptr), 0);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), 0);
  });
  EXPECT_THAT(found, HasSubstr("two of the ranks are on one GPU"));
}

TEST_P(Order, ARankThatJoinsTwiceIsFound) {
  const std::string found = JoinTwo(
      [](TestRank&, const UniqueId& id) { ExpectInvalidJoin(2, id, 0); });
  EXPECT_THAT(found, HasSubstr("rank 0 joins twice"));
}

TEST_P(Order, RanksThatDisagreeOnTheNumberOfRanksAreFound) {
  const std::string found = JoinTwo([](TestRank& rank, const UniqueId& id) {
    ExpectInvalidJoin(2 + rank.rank, id, rank.rank);
  });
  EXPECT_THAT(found, HasSubstr("ranks, another as one of"));
}

TEST_P(Order, MisusedCallsAreRefusedWithTheReason) {
  const auto body = [](TestRank& rank, Communicator* communicator) {
    void* const bytes = rank.Make(2 * kCount);
    void* const shifted = static_cast<float*>(bytes) + 1;
    EXPECT_EQ(ncclAllReduce(bytes, shifted, kCount, kFloat32, kSum,
                            communicator, rank.stream),
              kInvalidArgument);
    EXPECT_EQ(ncclSend(bytes, 1, kFloat32, 2, communicator, rank.stream),
              kInvalidArgument);
    EXPECT_EQ(ncclBcast(nullptr, 1, kFloat32, 0, communicator, rank.stream),
              kInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), kInvalidUsage);
  };
  const std::string found = RunRanks(2, WithOne(body));
  EXPECT_THAT(found, HasSubstr("writes what AllReduce of 16 float32"));
  EXPECT_THAT(found, HasSubstr("there are 2 ranks"));
  EXPECT_THAT(found, HasSubstr("a buffer is null"));
  EXPECT_THAT(found, HasSubstr("ncclGroupEnd without ncclGroupStart"));
}

}  // namespace
}  // namespace sluice::fake_nccl
