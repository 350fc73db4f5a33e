// Tests leases, pools and budgets through Core.
#include <fmt/format.h>

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

std::vector<ExtentId> Ids(const GrantedReply& lease) {
  std::vector<ExtentId> ids;
  for (const Slice& slice : lease.slices) ids.push_back(slice.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(Lease, ALeaseIsExactAndOnlyItsLastExtentIsSmaller) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                              node.Lease(a, Gpu(0), MiB(9) + KiB(64)));
  ASSERT_EQ(lease.slices.size(), 3u);
  EXPECT_EQ(lease.slices[0].size, MiB(4));
  EXPECT_EQ(lease.slices[1].size, MiB(4));
  EXPECT_EQ(lease.slices[2].size, MiB(1) + KiB(64));
  const PoolSnapshot pool = node.core.pool(Gpu(0));
  EXPECT_EQ(pool.leased, MiB(9) + KiB(64));
  EXPECT_EQ(pool.free, MiB(7) - KiB(64));
}

TEST(Lease, APrincipalReusesItsFreedExtents) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto first, node.Lease(a, Gpu(0), MiB(8)));
  ASSERT_TRUE(node.Ask(a, FreeRequest{first.lease}));
  EXPECT_EQ(node.core.pool(Gpu(0)).kept, MiB(8));
  // Another job of the same principal reuses the same extents.
  const SessionId b = node.Attach("other", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto second, node.Lease(b, Gpu(0), MiB(8)));
  EXPECT_EQ(Ids(first), Ids(second));
  EXPECT_TRUE(node.destroyed.empty());
}

// Guards against a lease that stays granted although it was refused.
TEST(Lease, AGrantThatCannotBeSentIsRefusedAndUncharged) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  const RequestId request(77);
  const auto granted = std::get<GrantedReply>(
      *node.Ask(a, LeaseRequest{Gpu(0), MiB(8)}, request));
  const absl::Status why = absl::ResourceExhaustedError("too many open files");
  const auto not_sent = [&](LeaseId lease) {
    node.Run([&](Core& to) {
      return to.GrantNotSent(a, lease, why, node.clock.Now());
    });
  };
  const auto refused =
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("open files"));
  not_sent(granted.lease);
  EXPECT_THAT(std::get<absl::Status>(node.replies.at({a, request})), refused);
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, Bytes(0));
  // The repeated request gets the same answer.
  const auto again = node.Ask(a, LeaseRequest{Gpu(0), MiB(8)}, request);
  EXPECT_THAT(std::get<absl::Status>(*again), refused);
  not_sent(granted.lease);
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
  node.Die(a);
  not_sent(granted.lease);
}

// A live process may still map memory that it freed, so no idle extent can be
// cut.
TEST(Lease, ALeaseIsMadeOfIdleExtentsIfNothingElseIsFree) {
  CoreDriver node;
  node.held = Held::kYes;
  const SessionId a = node.Attach("demo", 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto all, node.Lease(a, Host(0), MiB(32)));
  node.Ask(a, FreeRequest{all.lease});
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto first,
                              node.Lease(a, Host(0), MiB(22)));
  EXPECT_EQ(node.core.pool(Host(0)).leased, MiB(24));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto second,
                              node.Lease(a, Host(0), MiB(6)));
  EXPECT_EQ(node.core.pool(Host(0)).leased, MiB(32));
  EXPECT_EQ(second.slices.size(), 2u);
  // A GPU lease is never larger than its request, unlike a host lease.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto gpu, node.Lease(a, Gpu(0), MiB(16)));
  node.Ask(a, FreeRequest{gpu.lease});
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(6)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(Lease, OddIdleExtentsServeAnyLeaseOfTheirPrincipal) {
  CoreDriver node;
  node.held = Held::kUnknown;
  const SessionId a = node.Attach("demo", 0);
  for (int i = 0; i < 20; ++i) {  // sizes that a changing plan might have
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                node.Lease(a, Host(0), MiB(21) + KiB(64) * i));
    node.Ask(a, FreeRequest{lease.lease});
  }
  // The principal may lease the whole pool again. After its process has ended,
  // any principal may.
  const PoolSnapshot pool = node.core.pool(Host(0));
  EXPECT_EQ(pool.free + pool.lingering, MiB(32));
  node.Die(a);
  EXPECT_EQ(node.core.pool(Host(0)).free, MiB(32));
}

TEST(Lease, AGrantedHandleNeverGoesToAnotherPrincipal) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 1, /*uid=*/1);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto first, node.Lease(a, Gpu(0), MiB(16)));
  node.Die(a);
  const SessionId b = node.Attach("demo", 0, 1, /*uid=*/2);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto second,
                              node.Lease(b, Gpu(0), MiB(16)));
  for (ExtentId id : Ids(first)) EXPECT_TRUE(node.destroyed.contains(id));
  for (ExtentId id : Ids(second)) EXPECT_FALSE(node.destroyed.contains(id));
}

TEST(Lease, FreedMemoryThatMayBeMappedGoesToNoOtherUser) {
  CoreDriver node;
  node.held = Held::kUnknown;  // as on cuda
  const SessionId a = node.Attach("demo", 0, 1, /*uid=*/1);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease, node.Lease(a, Gpu(0), MiB(16)));
  ASSERT_TRUE(node.Ask(a, FreeRequest{lease.lease}));
  const SessionId b = node.Attach("demo", 0, 1, /*uid=*/2);
  EXPECT_THAT(node.Lease(b, Gpu(0), MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("until the processes that mapped them end")));
  EXPECT_TRUE(node.destroyed.empty());
  node.Die(a);
  EXPECT_THAT(node.Lease(b, Gpu(0), MiB(16)), IsOk());
}

TEST(Lease, LeasesOfAClosedSessionAreQuarantined) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(12)), IsOk());
  node.Apply(node.core.SocketEnded(a, node.clock.Now()));
  EXPECT_EQ(node.core.pool(Gpu(0)).quarantined, MiB(12));
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, Bytes(0));
  const SessionId b = node.Attach("demo", 0);
  EXPECT_THAT(node.Lease(b, Gpu(0), MiB(8)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("12 MiB belong to sessions that ended")));
  node.Apply(node.core.ProcessesGone({{a, {}}}, node.clock.Now()));
  EXPECT_EQ(node.core.pool(Gpu(0)).quarantined, Bytes(0));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
  EXPECT_TRUE(node.forgotten.contains(a));
}

TEST(Lease, AFailedExtentRefusesTheWholeLease) {
  CoreDriver node;
  node.make_at_once = false;
  const SessionId a = node.Attach("demo", 0);
  EXPECT_FALSE(node.Ask(a, LeaseRequest{Gpu(0), MiB(12)}, RequestId(500)));
  ASSERT_EQ(node.to_make.size(), 3u);
  node.MakeNext();
  node.MakeNext(absl::ResourceExhaustedError("Create: no memory"));
  EXPECT_FALSE(node.replies.contains({a, RequestId(500)}));
  node.MakeNext();
  const Reply& reply = node.replies.at({a, RequestId(500)});
  EXPECT_THAT(std::get<absl::Status>(reply),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("Create: no memory")));
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, Bytes(0));
  // The extents that were made are kept.
  EXPECT_EQ(node.core.pool(Gpu(0)).kept, MiB(8));
}

TEST(Lease, EachLeaseOfABatchIsDecidedByItsOwnExtents) {
  CoreDriver node;
  node.make_at_once = false;
  const SessionId a = node.Attach("a", 0), b = node.Attach("b", 0);
  EXPECT_FALSE(node.Ask(a, LeaseRequest{Gpu(0), MiB(8)}, RequestId(500)));
  EXPECT_FALSE(node.Ask(b, LeaseRequest{Gpu(0), MiB(8)}, RequestId(501)));
  node.MakeNext({absl::OkStatus(), absl::OkStatus(), absl::OkStatus(),
                 absl::ResourceExhaustedError("Create: no memory")});
  EXPECT_THAT(
      std::get<GrantedReply>(node.replies.at({a, RequestId(500)})).slices,
      SizeIs(2));
  EXPECT_THAT(std::get<absl::Status>(node.replies.at({b, RequestId(501)})),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("Create: no memory")));
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, MiB(8));
}

TEST(Lease, DeathWhileExtentsAreMadeLeaksNothing) {
  CoreDriver node;
  node.make_at_once = false;
  const SessionId a = node.Attach("demo", 0);
  EXPECT_FALSE(node.Ask(a, LeaseRequest{Gpu(0), MiB(12)}));
  node.MakeNext();
  node.Die(a);
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, MiB(8));  // extents being made
  node.MakeNext();
  node.MakeNext();
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, Bytes(0));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
}

TEST(Budget, ARefusalNamesRequestUseLimitAndRemedy) {
  NodeConfig config = SmallNode();
  config.named_job_limits["demo"] = {.host = MiB(10)};
  config.principal_limits = {.gpu = MiB(12)};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0);
  ASSERT_THAT(node.Lease(a, Host(0), MiB(8)), IsOk());
  EXPECT_THAT(
      node.Lease(a, Host(0), MiB(3)),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("asked 3 MiB of host memory, but job 'demo' uses 8 "
                         "MiB of its limit of 10 MiB; an administrator can "
                         "raise it: sluicectl budget set --job demo --host "
                         "11MiB")));
  // The principal's limit covers all its jobs.
  const SessionId b = node.Attach("other", 0);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
  EXPECT_THAT(node.Lease(b, Gpu(1), MiB(8)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("user 1 (/a) uses 8 MiB of its limit of 12")));
  EXPECT_THAT(node.Lease(b, Gpu(1), MiB(4)), IsOk());
  // Another principal has a budget of its own.
  const SessionId c = node.Attach("demo", 0, 1, /*uid=*/2);
  EXPECT_THAT(node.Lease(c, Gpu(1), MiB(12)), IsOk());
}

TEST(Budget, QuarantineCountsUntilTheProcessIsGone) {
  NodeConfig config = SmallNode();
  config.principal_limits = {.gpu = MiB(8)};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
  node.Apply(node.core.SocketEnded(a, node.clock.Now()));
  const SessionId b = node.Attach("demo", 0);
  EXPECT_THAT(node.Lease(b, Gpu(1), MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  node.Apply(node.core.ProcessesGone({{a, {}}}, node.clock.Now()));
  EXPECT_THAT(node.Lease(b, Gpu(1), MiB(4)), IsOk());
}

// Guards against listing only limits that are in use.
TEST(Budget, EveryConfiguredLimitIsListedEvenIfUnused) {
  using Of = LimitLine::Of;
  NodeConfig config = SmallNode();
  config.job_limits = {.gpu = MiB(8)};
  config.named_job_limits["night"] = {.host = MiB(4)};
  CoreDriver node(config);
  const absl::Time at = node.clock.Now();
  ASSERT_THAT(node.Change(BudgetChange{{.uid = 7}, MiB(3), {}, "root"}),
              IsOk());
  ASSERT_THAT(
      node.Change(BudgetChange{{.uid = 8, .cgroup = "/b"}, MiB(2), {}, ""}),
      IsOk());
  const auto list = [&](const Principal* viewer) {
    std::vector<std::string> lines;
    for (const LimitLine& line : node.core.TakeSnapshot(viewer, at).limits) {
      lines.push_back(
          fmt::format("{} {}{}{} {}", int(line.of), line.target.uid.value_or(0),
                      line.target.cgroup, line.target.job,
                      line.by.live ? "live " + line.by.who : "configured"));
    }
    return lines;
  };
  const std::string user = fmt::format("{} ", int(Of::kUser));
  const std::string every_job =
      fmt::format("{} 0 configured", int(Of::kEveryJob));
  const std::string night = fmt::format("{} 0night configured", int(Of::kJob));
  EXPECT_THAT(list(nullptr),
              ::testing::ElementsAre(user + "7 live root", user + "8/b live ",
                                     every_job, night));
  const Principal other{8, "/c"};
  EXPECT_THAT(list(&other),
              ::testing::ElementsAre(user + "8/b live ", every_job, night))
      << "a user is not shown limits of other users";
}

TEST(Budget, ALimitBelowUseIsRefusedAndOtherLimitsApplyAtOnce) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
  const auto set = [&](Bytes gpu) {
    return node.Change(BudgetChange{{.uid = 1}, gpu, {}, ""});
  };
  EXPECT_THAT(set(MiB(4)), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("already uses 8 MiB of GPU")));
  EXPECT_THAT(set(MiB(8)), IsOk());
  EXPECT_THAT(node.Lease(a, Gpu(0), MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(node.Change(BudgetChange{{}, MiB(1), {}, ""}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// Guards against clients that give up a lease while the daemon makes its
// memory.
TEST(Lease, ASlowLeaseSendsNoticesOfItsProgress) {
  CoreDriver node;
  node.make_at_once = false;
  const SessionId a = node.Attach("a", 0), b = node.Attach("b", 0);
  EXPECT_FALSE(node.Ask(a, LeaseRequest{Host(0), MiB(12)}).has_value());
  EXPECT_FALSE(node.Ask(b, LeaseRequest{Host(0), MiB(8)}).has_value());
  EXPECT_EQ(node.core.pool(Host(0)).making, MiB(20));
  node.MakeNext();
  EXPECT_EQ(node.core.pool(Host(0)).making, MiB(16));
  EXPECT_THAT(node.NoticesTo<LeaseProgressNotice>(a), ::testing::SizeIs(0));
  node.clock.Advance(absl::Milliseconds(250));
  node.MakeNext();
  const auto told = node.NoticesTo<LeaseProgressNotice>(a);
  ASSERT_THAT(told, ::testing::SizeIs(1));
  EXPECT_EQ(told[0].made, MiB(8));
  EXPECT_EQ(told[0].size, MiB(12));
  // No extent of b's lease is made yet, but b gets a notice as well.
  ASSERT_THAT(node.NoticesTo<LeaseProgressNotice>(b), ::testing::SizeIs(1));
  EXPECT_EQ(node.NoticesTo<LeaseProgressNotice>(b)[0].made, Bytes(0));
  EXPECT_FALSE(node.Ask(b, LeaseRequest{Gpu(0), MiB(4)}).has_value());
  node.MakeNext();
  EXPECT_THAT(node.NoticesTo<LeaseProgressNotice>(a), ::testing::SizeIs(1));
}

}  // namespace
}  // namespace sluice::daemon
