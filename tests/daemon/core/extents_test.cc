// Tests the limits on extents, which principal's extents make room, and when
// idle extents are destroyed.
#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/shortage.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr Bytes kSmall = KiB(64);

NodeConfig WithExtentLimits(ExtentLimits limits) {
  NodeConfig config = SmallNode();
  config.extent_limits = limits;
  return config;
}

// Leases `count` small extents and frees them.
void LeaveIdle(CoreDriver& node, SessionId id, int count) {
  std::vector<LeaseId> leases;
  for (int i = 0; i < count; ++i) {
    const auto lease = node.Lease(id, Gpu(0), kSmall);
    ASSERT_THAT(lease.status(), IsOk());
    leases.push_back(lease->lease);
  }
  for (LeaseId lease : leases) node.Ask(id, FreeRequest{lease});
}

void Tick(CoreDriver& node, absl::Duration after) {
  node.clock.Advance(after);
  node.Run([&](Core& to) { return to.Tick(node.clock.Now()); });
}

TEST(Extents, AUserHasAtMostAsManyExtentsAsItsLimit) {
  CoreDriver node(WithExtentLimits({.all = 100, .each = 10}));
  const SessionId rank = node.Attach("a", 0);
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(node.Lease(rank, Gpu(i % 2), kSmall).status(), IsOk());
  }
  EXPECT_THAT(
      node.Lease(rank, Host(0), kSmall).status(),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("has 10 extents, 1 more are asked for, and the "
                         "limit is 10: lease fewer and larger pieces, "
                         "free some, or raise extents in [quota]")));
  const Snapshot snapshot = node.core.TakeSnapshot(nullptr, node.clock.Now());
  EXPECT_EQ(snapshot.stats->leases_refused[RefusedBy::kExtents], 1u);
  // The limit of one user does not affect others.
  const SessionId other = node.Attach("a", 0, 1, /*uid=*/2);
  EXPECT_THAT(node.Lease(other, Gpu(0), kSmall).status(), IsOk());
}

TEST(Extents, ALeaseUpToTheExtentLimitWaitsAndALargerOneFails) {
  CoreDriver node(WithExtentLimits({.all = 100, .each = 3}));
  const SessionId other = node.Attach("a", 0, 1, /*uid=*/2);
  ASSERT_THAT(node.Lease(other, Gpu(0), MiB(12)).status(), IsOk());
  const SessionId rank = node.Attach("a", 0);
  const auto is_answered = [&](Bytes size) {
    return node.Ask(rank, LeaseRequest{Gpu(0), size, absl::Seconds(60)})
        .has_value();
  };
  EXPECT_FALSE(is_answered(MiB(12)));  // 3 extents
  EXPECT_TRUE(is_answered(MiB(16)));
}

// Guards against a message that names [quota], which does not set this limit.
TEST(Extents, ALimitByOpenFilesIsReportedAsALackOfOpenFiles) {
  CoreDriver node(
      WithExtentLimits({.all = 8, .each = 2, .each_of_open_files = true}));
  const SessionId rank = node.Attach("a", 0);
  const absl::Status refused = node.Lease(rank, Gpu(0), MiB(12)).status();
  EXPECT_EQ(ShortageOf(refused), Shortage::kOpenFiles);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("has 0 extents, 3 more are asked "
                                          "for, and the limit is 2")));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("raise the open files")));
}

// Guards against small idle extents that hold all descriptors.
TEST(Extents, AUsersIdleExtentsMakeRoomForItsNewExtents) {
  CoreDriver node(WithExtentLimits({.all = 100, .each = 10}));
  const SessionId rank = node.Attach("a", 0);
  LeaveIdle(node, rank, 10);
  node.clock.Advance(absl::Seconds(1));
  const auto lease = node.Lease(rank, Host(0), kSmall);
  ASSERT_THAT(lease.status(), IsOk());
  EXPECT_THAT(node.destroyed, SizeIs(1));
  EXPECT_TRUE(node.destroyed.contains(ExtentId(1))) << "extent 1 is the oldest";
  EXPECT_THAT(node.extents, SizeIs(10));
}

TEST(Extents, IdleExtentsOfAnyUserMakeRoomAtTheNodesLimit) {
  CoreDriver node(WithExtentLimits({.all = 20, .each = 20, .per_rank = 0}));
  const SessionId first = node.Attach("a", 0);
  LeaveIdle(node, first, 20);
  const SessionId other = node.Attach("a", 0, 1, /*uid=*/2);
  // Needs three extents, in another pool.
  ASSERT_THAT(node.Lease(other, Host(0), MiB(8) + kSmall).status(), IsOk());
  EXPECT_THAT(node.destroyed, SizeIs(3));
  EXPECT_THAT(node.extents, SizeIs(20));
}

TEST(Extents, SomeExtentsAreReservedForOtherUsersRanks) {
  CoreDriver node(WithExtentLimits({.all = 20, .each = 20, .per_rank = 4}));
  const SessionId greedy = node.Attach("a", 0);
  const SessionId modest = node.Attach("a", 0, 1, /*uid=*/2);
  int taken = 0;
  absl::Status refused;
  while (refused.ok() && taken < 30) {
    refused = node.Lease(greedy, Gpu(0), kSmall).status();
    taken += refused.ok() ? 1 : 0;
  }
  EXPECT_EQ(taken, 16);
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("this node has 16 extents, 1 more are "
                                 "asked for, and the limit of all "
                                 "users together is 20, of which 4 "
                                 "are held back")));
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(node.Lease(modest, Gpu(0), kSmall).status(), IsOk());
  }
}

TEST(Extents, AUsersNewExtentsPerSecondAreLimited) {
  CoreDriver node(
      WithExtentLimits({.all = 100, .each = 4, .changes_per_second = 2}));
  const SessionId rank = node.Attach("a", 0);
  LeaveIdle(node, rank, 4);
  // Leasing idle extents again makes and destroys none.
  LeaveIdle(node, rank, 4);
  EXPECT_THAT(node.Lease(rank, Gpu(0), 2 * kSmall).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("too many extents made and destroyed, and the "
                                 "limit is 2 a second: wait a moment")));
  EXPECT_THAT(node.destroyed, SizeIs(0));
  node.clock.Advance(absl::Seconds(1));
  EXPECT_THAT(node.Lease(rank, Gpu(0), 2 * kSmall).status(), IsOk());
  EXPECT_THAT(node.destroyed, SizeIs(1));
  const SessionId other = node.Attach("a", 0, 1, /*uid=*/2);
  EXPECT_THAT(node.Lease(other, Gpu(0), kSmall).status(), IsOk());
}

TEST(Extents, IdleExtentsAreDestroyedAfterTheirTimeout) {
  CoreDriver node(WithExtentLimits({.kept_for = absl::Seconds(60)}));
  const SessionId rank = node.Attach("a", 0);
  LeaveIdle(node, rank, 2);
  node.clock.Advance(absl::Seconds(30));
  LeaveIdle(node, rank, 1);  // restarts the timeout of the newest extent
  EXPECT_EQ(node.core.NextDeadline(), node.clock.Now() + absl::Seconds(30));
  Tick(node, absl::Seconds(30));
  EXPECT_THAT(node.destroyed, SizeIs(1));
  EXPECT_THAT(node.extents, SizeIs(1));
  Tick(node, absl::Seconds(30));
  EXPECT_THAT(node.extents, SizeIs(0));
  EXPECT_EQ(node.core.NextDeadline(), absl::InfiniteFuture());
}

NodeConfig KeepingHost() {
  return WithExtentLimits({.host_kept_for = absl::Minutes(10)});
}

// Attaches a rank that leases host memory and dies.
void DieWithHost(CoreDriver& node, uint32_t uid, const std::string& cgroup) {
  const SessionId id = node.Connect(uid, cgroup);
  node.Ask(id, HelloRequest{.job = "a"});
  ASSERT_THAT(node.Lease(id, Host(0), MiB(16)).status(), IsOk());
  node.Die(id);
}

SessionId AttachIn(CoreDriver& node, uint32_t uid, const std::string& cgroup) {
  const SessionId id = node.Connect(uid, cgroup);
  node.Ask(id, HelloRequest{.job = "b"});
  return id;
}

TEST(Extents, IdleHostMemoryOutlivesItsUsersLastProcess) {
  CoreDriver node(KeepingHost());
  DieWithHost(node, 1, "");
  Tick(node, absl::Minutes(9));
  const size_t made = node.extents.size();
  EXPECT_THAT(node.extents, SizeIs(4));
  const SessionId next = AttachIn(node, 1, "");
  ASSERT_THAT(node.Lease(next, Host(0), MiB(16)).status(), IsOk());
  EXPECT_THAT(node.extents, SizeIs(made));
  EXPECT_THAT(node.destroyed, SizeIs(0));
  node.Die(next);
  Tick(node, absl::Minutes(10));
  EXPECT_THAT(node.extents, SizeIs(0));
}

TEST(Extents, IdleHostMemoryIsDestroyedForAnotherUsersLease) {
  CoreDriver node(KeepingHost());
  DieWithHost(node, 1, "");
  const SessionId other = AttachIn(node, 2, "");
  ASSERT_THAT(node.Lease(other, Host(0), MiB(32)).status(), IsOk());
  EXPECT_THAT(node.destroyed, SizeIs(4));
}

TEST(Extents, TheMachinesNeedDestroysTheOldestIdleHostMemory) {
  CoreDriver node(KeepingHost());
  DieWithHost(node, 1, "");
  EXPECT_EQ(node.core.ledger().IdleHost(), MiB(16));
  node.Run([](Core& core) { return core.MachineNeeds(MiB(5)); });
  EXPECT_EQ(node.core.ledger().IdleHost(), MiB(8));
  EXPECT_TRUE(node.destroyed.contains(ExtentId(1)));
}

// Guards against memory that a dead pod keeps and no other pod may lease.
TEST(Extents, APodsMemoryIsDestroyedAndASlurmJobsMemoryReused) {
  constexpr char kJob[] = "/system.slice/slurmstepd.scope/job_";
  CoreDriver node(KeepingHost());
  DieWithHost(node, 1, "/kubepods/pod1");
  Tick(node, absl::Seconds(3));
  EXPECT_THAT(node.extents, SizeIs(0));
  DieWithHost(node, 1, std::string(kJob) + "1");
  Tick(node, absl::Seconds(3));
  EXPECT_THAT(node.extents, SizeIs(4));
  const SessionId other = AttachIn(node, 2, std::string(kJob) + "2");
  const SessionId next = AttachIn(node, 1, std::string(kJob) + "3");
  ASSERT_THAT(node.Lease(next, Host(0), MiB(16)).status(), IsOk());
  EXPECT_THAT(node.extents, SizeIs(4));
  ASSERT_THAT(node.Lease(other, Host(0), MiB(16)).status(), IsOk());
  EXPECT_THAT(node.extents, SizeIs(8));
}

TEST(Extents, ASlurmJobReusesMemoryOnlyUpToItsExtentLimit) {
  constexpr char kJob[] = "/system.slice/slurmstepd.scope/job_";
  CoreDriver node(
      WithExtentLimits({.each = 6, .host_kept_for = absl::Minutes(10)}));
  const SessionId first = node.Connect(1, std::string(kJob) + "2");
  node.Ask(first, HelloRequest{.job = "a"});
  ASSERT_THAT(node.Lease(first, Gpu(0), MiB(16)).status(), IsOk());
  DieWithHost(node, 1, std::string(kJob) + "1");
  const SessionId heir = AttachIn(node, 1, std::string(kJob) + "2");
  ASSERT_THAT(node.Lease(heir, Host(0), MiB(8)).status(), IsOk());
  EXPECT_THAT(node.extents, SizeIs(8)) << "4 of the GPU, and 4 as before";
  EXPECT_THAT(node.Lease(heir, Host(0), kSmall).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("has 6 extents")));
}

TEST(Extents, IdleExtentsAreDestroyedAfterTheirUsersLastProcess) {
  CoreDriver node(WithExtentLimits({}));
  const SessionId rank = node.Attach("a", 0), last = node.Attach("b", 0);
  LeaveIdle(node, rank, 256);
  node.Die(rank);
  Tick(node, absl::Seconds(3));
  EXPECT_THAT(node.extents, SizeIs(256));
  node.Die(last);
  Tick(node, absl::Seconds(1));
  // If the user starts a process within 2 s, the extents are kept.
  const SessionId again = node.Attach("a", 0);
  Tick(node, absl::Seconds(3));
  EXPECT_THAT(node.extents, SizeIs(256));
  node.Die(again);
  EXPECT_EQ(node.core.NextDeadline(), node.clock.Now() + absl::Seconds(2));
  Tick(node, absl::Seconds(2));
  EXPECT_THAT(node.extents, SizeIs(0));
  EXPECT_THAT(node.core.Save().ledger.principals, SizeIs(0));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, node.core.pool(Gpu(0)).total);
}

}  // namespace
}  // namespace sluice::daemon
