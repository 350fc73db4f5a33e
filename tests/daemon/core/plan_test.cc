// Plan rounds through Core.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Submits a profile whose decode succeeds at once.
void Submit(CoreDriver& node, SessionId id, int rank, uint64_t gpu,
            const std::string& hash) {
  node.Ask(id, ProfileRequest{});
  ASSERT_FALSE(node.to_read.empty());
  const ReadProfile read = node.to_read.back();
  node.to_read.pop_back();
  auto profile = std::make_shared<plan::RankProfile>();
  profile->rank = Rank(rank);
  profile->gpu = DeviceIndex(gpu);
  node.Apply(node.core.ProfileRead(read.session, read.request,
                                   ProfileWithHash{profile, hash},
                                   node.clock.Now()));
}

TEST(Plan, WaitsForAllLocalRanksThenEachGetsTheSamePlan) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2, 1, 0);
  const SessionId b = node.Attach("demo", 1, 2, 1, 1);
  Submit(node, a, 0, 0, "h0");
  EXPECT_THAT(node.to_solve, IsEmpty());
  Submit(node, b, 1, 1, "h1");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const SolvePlan& question = node.to_solve[0];
  EXPECT_THAT(question.profiles, SizeIs(2));
  ASSERT_THAT(question.resources.links, SizeIs(2));
  EXPECT_EQ(question.resources.links[0].h2d_bytes_per_second, 1e9);
  EXPECT_THAT(question.resources.host_budget, ::testing::ElementsAre(MiB(32)));
  node.Apply(
      node.core.PlanSolved(question.round, plan::NodePlan{}, node.clock.Now()));
  ASSERT_THAT(node.NoticesTo<PlanReadyNotice>(a), SizeIs(1));
  ASSERT_THAT(node.NoticesTo<PlanReadyNotice>(b), SizeIs(1));
  EXPECT_EQ(node.NoticesTo<PlanReadyNotice>(a)[0].plan, PlanId(1));
}

TEST(Plan, SameQuestionIsAnsweredFromTheCacheAnotherIsNot) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  Submit(node, a, 0, 0, "h0");
  node.Apply(node.core.PlanSolved(node.to_solve[0].round, plan::NodePlan{},
                                  node.clock.Now()));
  Submit(node, a, 0, 0, "h0");
  EXPECT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.NoticesTo<PlanReadyNotice>(a), SizeIs(2));
  Submit(node, a, 0, 0, "h1");
  EXPECT_THAT(node.to_solve, SizeIs(2));
  // The same profile with other resources is another question.
  node.Apply(node.core.PlanSolved(node.to_solve[1].round, plan::NodePlan{},
                                  node.clock.Now()));
  const SessionId b = node.Attach("other", 0);
  ASSERT_THAT(node.Lease(b, Host(0), MiB(16)), sluice::testing::IsOk());
  Submit(node, a, 0, 0, "h0");
  EXPECT_THAT(node.to_solve, SizeIs(3));
}

TEST(Plan, ResourcesAreWhatTheJobMayStillGetOfWhatItShares) {
  NodeConfig config = SmallNode();
  config.gpus[1].link = "pcie0";
  config.named_job_limits["demo"] = {.host = MiB(10)};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0);
  node.Attach("other", 0, 1, 1, /*gpu=*/1);  // on the same link
  ASSERT_THAT(node.Lease(a, Host(0), MiB(4)), sluice::testing::IsOk());
  Submit(node, a, 0, 0, "h");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const auto& resources = node.to_solve[0].resources;
  EXPECT_EQ(resources.links[0].h2d_bytes_per_second, 0.5e9);
  EXPECT_THAT(resources.host_budget, ::testing::ElementsAre(MiB(10)));
}

// Wrong once: the whole link went, and with it the direction that limits.
TEST(Plan, LinkThatIsThrottledOneWayStillLimitsThatWay) {
  NodeConfig config = SmallNode();
  config.links = {{"pcie0", 1e9, 0}, {"pcie1", 0, 2e9}};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0, 2, 1, 0);
  const SessionId b = node.Attach("demo", 1, 2, 1, 1);
  Submit(node, a, 0, 0, "h0");
  Submit(node, b, 1, 1, "h1");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const auto& links = node.to_solve[0].resources.links;
  ASSERT_THAT(links, SizeIs(2));
  EXPECT_EQ(links[0].h2d_bytes_per_second, 1e9);
  EXPECT_GE(links[0].d2h_bytes_per_second, 1e12);
  EXPECT_GE(links[1].h2d_bytes_per_second, 1e12);
  EXPECT_EQ(links[1].d2h_bytes_per_second, 2e9);
}

TEST(Plan, LinkThatIsNotThrottledIsNoneOfThePlansConcern) {
  NodeConfig config = SmallNode();
  config.links[0] = {"pcie0", 0, 0};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0);
  Submit(node, a, 0, 0, "h");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].resources.links, IsEmpty());
}

TEST(Plan, DoesNotCountFreeMemoryThatNoLeaseCouldHave) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  // Freed, but perhaps still mapped: whole extents serve again, the odd tail
  // only a lease with the same tail.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease, node.Lease(a, Host(0), MiB(9)));
  node.Ask(a, FreeRequest{lease.lease});
  EXPECT_EQ(node.core.pool(Host(0)).free, MiB(32));
  Submit(node, a, 0, 0, "h");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const Bytes budget = node.to_solve[0].resources.host_budget[0];
  EXPECT_EQ(budget, MiB(31));
  EXPECT_THAT(node.Lease(a, Host(0), MiB(32)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(node.Lease(a, Host(0), budget), sluice::testing::IsOk());
}

TEST(Plan, DeadlineStopsTheWorkerAndTellsTheRanks) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  Submit(node, a, 0, 0, "h0");
  const PlanRoundId round = node.to_solve[0].round;
  node.clock.Advance(absl::Seconds(25));
  node.Apply(node.core.Tick(node.clock.Now()));
  EXPECT_THAT(node.stopped, IsEmpty());  // the worker's own limit comes first
  node.clock.Advance(absl::Seconds(2));
  node.Apply(node.core.Tick(node.clock.Now()));
  EXPECT_TRUE(node.stopped.contains(round));
  ASSERT_THAT(node.NoticesTo<PlanFailedNotice>(a), SizeIs(1));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(a)[0].reason,
              HasSubstr("no plan within 20 s"));
  // A late answer finds nobody.
  node.Apply(node.core.PlanSolved(round, plan::NodePlan{}, node.clock.Now()));
  EXPECT_THAT(node.NoticesTo<PlanReadyNotice>(a), IsEmpty());
}

TEST(Plan, RankThatLeavesEndsTheRoundForTheOthers) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2);
  const SessionId b = node.Attach("demo", 1, 2);
  Submit(node, a, 0, 0, "h0");
  node.Die(b);
  ASSERT_THAT(node.NoticesTo<PlanFailedNotice>(a), SizeIs(1));
  // And while it is being solved.
  const SessionId c = node.Attach("demo", 1, 2);
  Submit(node, a, 0, 0, "h0");
  Submit(node, c, 1, 0, "h1");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  node.Die(c);
  EXPECT_TRUE(node.stopped.contains(node.to_solve[0].round));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(a), SizeIs(2));
}

TEST(Plan, BelongsToItsPrincipal) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 1, /*uid=*/1);
  Submit(node, a, 0, 0, "h0");
  node.Apply(node.core.PlanSolved(node.to_solve[0].round, plan::NodePlan{},
                                  node.clock.Now()));
  const SessionId b = node.Attach("demo", 0, 1, /*uid=*/2);
  const auto reply = node.Ask(b, QueryRequest{PlanId(1)});
  EXPECT_THAT(std::get<absl::Status>(*reply),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(std::holds_alternative<SnapshotReply>(
      *node.Ask(a, QueryRequest{PlanId(1)})));
}

}  // namespace
}  // namespace sluice::daemon
