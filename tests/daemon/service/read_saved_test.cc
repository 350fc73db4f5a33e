#include <utility>

#include "daemon/service/takeover/handover.h"
#include "daemon/state/core_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the status of reading the state of `before` on a SmallNode with these
// GPU UUIDs.
absl::Status Read(CoreDriver& before, std::string first, std::string second) {
  NodeConfig node = SmallNode();
  node.gpus[0].uuid = std::move(first);
  node.gpus[1].uuid = std::move(second);
  const Core fresh(std::move(node), absl::UnixEpoch());
  return ReadSaved({CoreRows().Everything(before.core), {}}, fresh).status();
}

TEST(ReadSaved, AnotherGpuThanTheOneThatJobsUseIsRefused) {
  CoreDriver before;
  before.Attach("job", 0, 1, 1, 1);
  EXPECT_THAT(Read(before, "GPU-a", "GPU-b"), IsOk());
  EXPECT_THAT(Read(before, "GPU-b", "GPU-a"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("GPU 1 is GPU-a"),
                             HasSubstr("CUDA_VISIBLE_DEVICES"))));
  EXPECT_THAT(Read(before, "GPU-c", "GPU-b"), IsOk()) << "no job uses GPU 0";
  EXPECT_THAT(Read(before, "GPU-a", ""), IsOk()) << "GPU 1 cannot be used now";
}

TEST(ReadSaved, AnotherGpuThanTheOneWithTheMemoryIsRefused) {
  CoreDriver before;
  const SessionId rank = before.Attach("job", 0);
  ASSERT_THAT(before.Lease(rank, Gpu(0), MiB(4)).status(), IsOk());
  before.Die(rank);
  EXPECT_THAT(Read(before, "GPU-b", "GPU-a"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("GPU 0 is GPU-b")));
}

// Older daemons saved no UUIDs.
TEST(ReadSaved, AGpuWithoutASavedUuidIsKnownByItsNumber) {
  NodeConfig node = SmallNode();
  for (GpuConfig& gpu : node.gpus) gpu.uuid.clear();
  CoreDriver before(node);
  before.Attach("job", 0);
  EXPECT_THAT(Read(before, "GPU-b", "GPU-a"), IsOk());
}

}  // namespace
}  // namespace sluice::daemon
