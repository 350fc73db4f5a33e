// Tests memory that was returned and may still be mapped: only its principal is
// charged for it and may lease it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

NodeConfig WithUserLimits(Limits user) {
  NodeConfig config = SmallNode();
  config.principal_limits = user;
  return config;
}

// Attaches a rank of job "demo" that has returned `size` of `pool`, on a device
// that does not report which processes still map it.
SessionId AttachAndReturn(CoreDriver& node, PoolId pool, Bytes size) {
  node.held = Held::kUnknown;
  const SessionId rank = node.Attach("demo", 0);
  const auto lease = node.Lease(rank, pool, size);
  SLUICE_CHECK_OK(lease.status());
  node.Ask(rank, FreeRequest{lease->lease});
  return rank;
}

void Later(CoreDriver& node) {
  node.clock.Advance(Ledger::kAskEvery);
  node.Run([&](Core& core) { return core.Tick(node.clock.Now()); });
}

// Guards against freed memory that leaves the budget while it is still mapped.
TEST(Lingering, RepeatedLeasingAndFreeingStaysWithinTheBudget) {
  for (const Held held : {Held::kYes, Held::kUnknown}) {
    CoreDriver node(WithUserLimits({.gpu = MiB(8)}));
    node.held = held;
    const SessionId a = node.Attach("demo", 0);
    for (int i = 0; i < 8; ++i) {  // each of another size
      const auto lease = node.Lease(a, Gpu(0), MiB(1) + KiB(64) * i);
      if (lease.ok()) node.Ask(a, FreeRequest{lease->lease});
    }
    const PoolSnapshot pool = node.core.pool(Gpu(0));
    EXPECT_GT(pool.lingering, MiB(4));
    EXPECT_LE(pool.lingering, MiB(8));
    EXPECT_EQ(pool.free + pool.lingering, pool.total);
    EXPECT_THAT(node.Lease(a, Gpu(1), MiB(4)),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("of its limit of 8 MiB")));
    node.Die(a);
    node.held = Held::kNo;
    Later(node);
    EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
    const SessionId b = node.Attach("demo", 0);
    EXPECT_THAT(node.Lease(b, Gpu(1), MiB(8)), IsOk());
  }
}

TEST(Lingering, AnotherJobLeasesLingeringMemoryAndIsChargedOnce) {
  CoreDriver node(WithUserLimits({.gpu = MiB(8)}));
  AttachAndReturn(node, Gpu(0), MiB(8));
  EXPECT_EQ(node.core.pool(Gpu(0)).lingering, MiB(8));
  const SessionId b = node.Attach("other", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto again, node.Lease(b, Gpu(0), MiB(8)));
  EXPECT_EQ(node.core.pool(Gpu(0)).lingering, Bytes(0));
  const Snapshot now = node.core.TakeSnapshot(nullptr, node.clock.Now());
  ASSERT_THAT(now.budgets, SizeIs(2));  // the user's, and job other's
  EXPECT_EQ(now.budgets[1].job, "other");
  EXPECT_EQ(now.budgets[0].gpu_used, MiB(8));
  node.Ask(b, FreeRequest{again.lease});
}

// Lingering memory is charged to its user, so a job that frees memory for a
// smaller plan must be able to lease that memory again.
TEST(Lingering, MemoryIsReusedIfTheBudgetHasNoRoomForNewExtents) {
  CoreDriver node(WithUserLimits({.host = MiB(8)}));
  const SessionId a = AttachAndReturn(node, Host(0), MiB(7));
  // The lease needs a tail of 2 MiB, and the budget has 1 MiB left, so the
  // lease gets the old tail of 3 MiB.
  const SessionId b = node.Attach("other", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto again, node.Lease(b, Host(0), MiB(6)));
  Bytes size;
  for (const Slice& slice : again.slices) size += slice.size;
  EXPECT_EQ(size, MiB(7));
  const PoolSnapshot pool = node.core.pool(Host(0));
  EXPECT_EQ(pool.lingering, Bytes(0));
  EXPECT_EQ(pool.leased, MiB(7));
  EXPECT_THAT(node.Lease(a, Host(0), MiB(2)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("uses 7 MiB of its limit of 8 MiB")));
  EXPECT_THAT(node.Lease(a, Host(0), MiB(1)), IsOk());
}

TEST(Lingering, ReusedGpuMemoryIsNoLargerThanAsked) {
  CoreDriver node(WithUserLimits({.gpu = MiB(8)}));
  const SessionId a = AttachAndReturn(node, Gpu(0), MiB(7));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(6)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(7)), IsOk());
}

// Another job of the user may lease lingering memory within that job's own
// budget.
TEST(Lingering, ReusedMemoryCountsAgainstItsJobsBudget) {
  NodeConfig config = WithUserLimits({.host = MiB(8)});
  config.named_job_limits = {{"other", {.host = MiB(6)}}};
  CoreDriver node(config);
  AttachAndReturn(node, Host(0), MiB(7));
  const SessionId b = node.Attach("other", 0);
  EXPECT_THAT(node.Lease(b, Host(0), MiB(6)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(node.core.pool(Host(0)).lingering, MiB(7));
  EXPECT_THAT(node.Lease(b, Host(0), MiB(4)), IsOk());
}

// Guards against a child's memory that counts as free after its parent's end.
TEST(Lingering, AChildOfADeadProcessStillHoldsTheMemory) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 1, /*uid=*/1);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(12)), IsOk());
  node.held = Held::kYes;
  node.Die(a);
  EXPECT_EQ(node.core.pool(Gpu(0)).lingering, MiB(12));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(4));
  const SessionId b = node.Attach("demo", 0, 1, /*uid=*/2);
  EXPECT_THAT(node.Lease(b, Gpu(0), MiB(8)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("12 MiB were freed, but stay")));
  Later(node);
  EXPECT_EQ(node.core.pool(Gpu(0)).lingering, MiB(12));
  EXPECT_LE(node.core.NextDeadline(), node.clock.Now() + Ledger::kAskEvery);
  node.held = Held::kNo;
  Later(node);
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
  EXPECT_THAT(node.Lease(b, Gpu(0), MiB(16)), IsOk());
  EXPECT_THAT(node.destroyed, SizeIs(3));  // and made again for user 2
  Later(node);
  EXPECT_TRUE(node.to_ask.empty());
}

TEST(Lingering, TheDeviceIsNotAskedIfItNeverKnowsTheHolders) {
  CoreDriver node;
  const SessionId a = AttachAndReturn(node, Gpu(0), MiB(8));
  node.answer_at_once = false;
  Later(node);
  Later(node);
  EXPECT_TRUE(node.to_ask.empty());
  EXPECT_EQ(node.core.NextDeadline(), absl::InfiniteFuture());
  node.answer_at_once = true;
  node.Die(a);
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
}

TEST(Lingering, ADeviceQueryHasALimitedNumberOfExtents) {
  NodeConfig config = SmallNode();
  config.extent.host = KiB(64);
  CoreDriver node(config);
  node.held = Held::kYes;
  const SessionId a = node.Attach("demo", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                              node.Lease(a, Host(0), KiB(64) * 500));
  node.answer_at_once = false;
  node.Ask(a, FreeRequest{lease.lease});
  ASSERT_THAT(node.to_ask, SizeIs(1));
  EXPECT_THAT(node.to_ask[0].extents, SizeIs(Ledger::kAskAtOnce));
  node.held = Held::kNo;
  node.answer_at_once = true;
  Later(node);
  EXPECT_EQ(node.core.pool(Host(0)).free, MiB(32));
}

}  // namespace
}  // namespace sluice::daemon
