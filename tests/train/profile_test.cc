// Tests that the cost model can read the output of sluice-train profile.
#include "planner/train/hardware.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"

namespace sluice::train {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::testing::HasSubstr;

TEST(Profile, MeasuresANodeThatTheCostModelReads) {
  const ChildResult result =
      Child::Spawn(
          {BinaryPath("sluice-train"), "profile", "--private", "--ranks", "2"},
          {})
          ->Join();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("SIMULATED"));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const planner::train::Hardware hardware,
      planner::train::ReadHardware(result.out, "measured"));
  EXPECT_EQ(hardware.gpus_per_node, 2);
  // A private node's links carry 2e9 bytes per second in each direction, but
  // less on busy cores.
  EXPECT_GT(hardware.host_link_bytes_per_s, 0.02e9);
  EXPECT_LT(hardware.host_link_bytes_per_s, 2.2e9);
  EXPECT_EQ(hardware.memory_bytes, 256.0 * (1 << 20));
  // Attention is measured for heads of 128 and of 64.
  EXPECT_EQ(hardware.attention_head_dim, 128);
  EXPECT_GT(hardware.narrow_forward_efficiency, 0);
  // Backward's rate is near forward's: it takes 2.5 times as long for 2.5 times
  // the work.
  EXPECT_GT(hardware.narrow_backward_efficiency,
            hardware.narrow_forward_efficiency / 3);
  // On a CPU all products are in fp32.
  EXPECT_EQ(hardware.matmul_fp32_efficiency, hardware.matmul_efficiency);
}

TEST(Profile, MeasuresOneGpuByItself) {
  const ChildResult result =
      Child::Spawn(
          {BinaryPath("sluice-train"), "profile", "--private", "--ranks", "1"},
          {})
          ->Join();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const planner::train::Hardware hardware,
      planner::train::ReadHardware(result.out, "measured"));
  EXPECT_EQ(hardware.gpus_per_node, 1);
  EXPECT_GT(hardware.host_link_bytes_per_s, 0);
}

TEST(Profile, RefusesABadFlagInOneLine) {
  const ChildResult result =
      Child::Spawn({BinaryPath("sluice-train"), "profile", "--ranks", "0"}, {})
          ->Join();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--ranks 0: must be between"));
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace sluice::train
