// Tests ranks on GPUs over torch's own ProcessGroupNCCL: two processes on two
// fake GPUs and a fake NCCL. This proves nothing about a real GPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(100);

class NcclRanks : public ::testing::Test {
 protected:
  // With `silent`, NCCL does not report a death, as within a node. Without
  // `aborts`, an abort is a finding.
  std::unique_ptr<Child> Start(int rank, const std::string& what,
                               bool silent = true, bool aborts = true) {
    return Child::Spawn(
        {BinaryPath("nccl_rank"), std::to_string(rank), signs_.path(),
         SLUICE_TORCH_CUDA, what},
        {fmt::format("SLUICE_FAKE_CUDA=gpus=2,jitter_us=200,node={}",
                     node_.path()),
         fmt::format("SLUICE_FAKE_NCCL=silent={},aborts={}", silent ? 1 : 0,
                     aborts ? 1 : 0)});
  }
  std::string Findings() const {
    std::ifstream file(node_.File("findings"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempDir node_, signs_;
};

TEST_F(NcclRanks, CollectivesWorkOnGpusAndOnTheHost) {
  const auto first = Start(0, "exchange", true, /*aborts=*/false);
  const auto second = Start(1, "exchange", true, /*aborts=*/false);
  first->ExpectSuccess(kLong);
  second->ExpectSuccess(kLong);
  EXPECT_EQ(Findings(), "");
}

TEST_F(NcclRanks, NothingIsIssuedAfterAnAbort) {
  const auto first = Start(0, "abort-first"), second = Start(1, "abort-first");
  first->ExpectSuccess(kLong);
  second->ExpectSuccess(kLong);
  EXPECT_EQ(Findings(), "");
}

// The run's timeout must replace c10d's default.
TEST_F(NcclRanks, AnAbsentRankIsAwaitedForTheRunsTimeout) {
  const auto absent = Start(0, "idle"), other = Start(1, "await-nobody");
  const ChildResult result = other->Join(kLong);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("sum over ranks of"));
  absent->Kill(SIGKILL);
  absent->Join();
}

TEST_F(NcclRanks, AnAbortEndsTheWaitForAKilledRankWithItsReason) {
  const auto victim = Start(0, "die"), other = Start(1, "await-abort");
  ASSERT_TRUE(victim->WaitForOutput("joined", kLong));
  ASSERT_TRUE(other->WaitForOutput("waits", kLong));
  victim->Kill(SIGKILL);
  victim->Join();
  std::ofstream(signs_.File("died")) << "killed\n";
  const ChildResult result = other->Join(kLong);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("rank 0 of job demo: killed"));
  std::cout << result.out;
  EXPECT_EQ(Findings(), "");
}

TEST_F(NcclRanks, ASumWithAKilledRankHasEndedWhenTheStreamIsIdle) {
  const auto victim = Start(0, "die"), other = Start(1, "leave-begun");
  ASSERT_TRUE(victim->WaitForOutput("joined", kLong));
  ASSERT_TRUE(other->WaitForOutput("waits", kLong));
  victim->Kill(SIGKILL);
  victim->Join();
  std::ofstream(signs_.File("died")) << "killed\n";
  const ChildResult result = other->Join(kLong);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(Findings(), "");
}

TEST_F(NcclRanks, ADeathThatNcclReportsIsTheErrorAfterTheHostsWait) {
  const auto victim = Start(0, "die", /*silent=*/false);
  const auto other = Start(1, "await-error", /*silent=*/false);
  ASSERT_TRUE(victim->WaitForOutput("joined", kLong));
  ASSERT_TRUE(other->WaitForOutput("waits", kLong));
  victim->Kill(SIGKILL);
  const ChildResult result = other->Join(kLong);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  // The waiting operation or the next one reports the death.
  EXPECT_THAT(result.out, AnyOf(HasSubstr("rank 0, whose process has ended"),
                                HasSubstr("the process of rank 0 has ended")));
  EXPECT_EQ(Findings(), "");
}

// If NCCL's "unhandled cuda error" were taken for another rank's end, the run's
// last line would name a healthy rank.
TEST_F(NcclRanks, ALostGpuIsItsOwnRanksFaultAndNotAnothers) {
  const auto other = Start(0, "die"), victim = Start(1, "lose-gpu");
  ASSERT_TRUE(victim->WaitForOutput("joined", kLong));
  ASSERT_TRUE(other->WaitForOutput("joined", kLong));
  std::ofstream(node_.File("lost-gpu1")) << "";
  std::ofstream(signs_.File("lost")) << "lost\n";
  const ChildResult result = victim->Join(kLong);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("on rank 1 of 2 failed: this rank's GPU: "
                                    "CUDA error"));
  EXPECT_THAT(result.out, Not(HasSubstr("another rank")));
  other->Kill(SIGKILL);
  other->Join();
}

}  // namespace
}  // namespace sluice::testing
