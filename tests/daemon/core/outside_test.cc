// What processes without a session hold: not free, until the device says so.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

void Say(CoreDriver& node, std::map<PoolId, Bytes> pools) {
  const absl::Time now = node.clock.Now();
  const HeldOutside held{std::move(pools), now};
  node.Run([&](Core& core) { return core.OutsideKnown(held, now); });
}

// Wrong once: a pool said that all of it was free beside ranks that held it.
TEST(Outside, IsNotFreeAndNotLeasedUntilItComesBack) {
  CoreDriver node;
  Say(node, {{Gpu(0), MiB(10)}, {Host(0), MiB(3)}});
  const PoolSnapshot pool = node.core.pool(Gpu(0));
  EXPECT_EQ(pool.outside, MiB(10));
  EXPECT_EQ(pool.free, MiB(6));
  EXPECT_EQ(node.core.pool(Gpu(1)).free, MiB(16));
  EXPECT_EQ(node.core.pool(Host(0)).free, MiB(29));
  const SessionId a = node.Attach("demo", 0);
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(7)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("free 6 MiB of 16 MiB"),
                             HasSubstr("10 MiB are held outside"))));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(6)), IsOk());
  Say(node, {});
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, Bytes(0));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(10)), IsOk());
}

TEST(Outside, SaysWhenItWasSeenAndWhenItEnded) {
  CoreDriver node;
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).outside_at,
            absl::InfinitePast());
  Say(node, {{Gpu(0), MiB(10)}});
  const absl::Time seen = node.clock.Now();
  node.clock.Advance(absl::Seconds(3));
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).outside_at, seen);
  EXPECT_THAT(node.core.log().events().back().text,
              HasSubstr("GPU 0: processes without a session, such as ranks of "
                        "a daemon that was killed, hold 10 MiB"));
  Say(node, {{Gpu(0), MiB(2)}});  // nothing to be said
  Say(node, {});
  EXPECT_THAT(node.core.log().events().back().text,
              HasSubstr("GPU 0: processes without a session hold nothing"));
  EXPECT_EQ(node.core.log().last(), 2);
}

// What the device says and what is leased are of different moments.
TEST(Outside, IsNoMoreThanThereIsBesideWhatIsLeasedOrKept) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease, node.Lease(a, Gpu(0), MiB(8)));
  Say(node, {{Gpu(0), MiB(12)}});
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, MiB(8));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, Bytes(0));
  node.held = Held::kNo;
  node.Ask(a, FreeRequest{lease.lease});
  // Kept by its principal, who has it again.
  EXPECT_EQ(node.core.pool(Gpu(0)).outside, MiB(8));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(8));
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
}

TEST(Outside, WhatIsSavedIsReadWithIt) {
  CoreDriver node;
  Say(node, {{Gpu(0), MiB(12)}, {Host(0), MiB(1)}});
  node.CheckSaved();
  Core read(node.core.config(), node.clock.Now());
  read.Load(node.core.Save());
  EXPECT_EQ(read.pool(Gpu(0)).free, MiB(4));
}

}  // namespace
}  // namespace sluice::daemon
