// Tests rounds of planning and the unit cache through Core.
#include <fmt/format.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Submits a profile and reports it as decoded.
void Submit(CoreDriver& node, SessionId id, int rank, uint64_t gpu,
            const std::string& hash,
            std::optional<Bytes> host_limit = std::nullopt) {
  node.Ask(id, ProfileRequest{});
  ASSERT_FALSE(node.to_read.empty());
  const ReadProfile read = node.to_read.back();
  node.to_read.pop_back();
  auto profile = std::make_shared<plan::RankProfile>();
  profile->rank = Rank(rank);
  profile->gpu = DeviceIndex(gpu);
  profile->host_limit = host_limit;
  node.Apply(node.core.ProfileRead(read.session, read.request,
                                   ProfileWithHash{profile, hash},
                                   node.clock.Now()));
}

TEST(Plan, APlanWaitsForAllLocalRanksAndThenGoesToEach) {
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
  ASSERT_THAT(question.resources.hosts, SizeIs(1));
  EXPECT_EQ(question.resources.hosts[0].name, "host of NUMA node 0");
  EXPECT_EQ(question.resources.hosts[0].bytes, MiB(32));
  EXPECT_THAT(question.resources.hosts[0].profiles,
              ::testing::ElementsAre(0, 1));
  EXPECT_THAT(question.resources.links[1].profiles, ::testing::ElementsAre(1));
  node.Apply(
      node.core.PlanSolved(question.round, plan::NodePlan{}, node.clock.Now()));
  ASSERT_THAT(node.NoticesTo<PlanReadyNotice>(a), SizeIs(1));
  ASSERT_THAT(node.NoticesTo<PlanReadyNotice>(b), SizeIs(1));
  EXPECT_EQ(node.NoticesTo<PlanReadyNotice>(a)[0].plan, PlanId(1));
}

TEST(Plan, TheSameRequestIsAnsweredFromTheCacheAndAnotherIsNot) {
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
  // The same profile with other resources is a different request.
  node.Apply(node.core.PlanSolved(node.to_solve[1].round, plan::NodePlan{},
                                  node.clock.Now()));
  const SessionId b = node.Attach("other", 0);
  ASSERT_THAT(node.Lease(b, Host(0), MiB(16)), sluice::testing::IsOk());
  Submit(node, a, 0, 0, "h0");
  EXPECT_THAT(node.to_solve, SizeIs(3));
}

TEST(Plan, ResourcesAreTheJobsShareOfLinksAndItsBudget) {
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
  ASSERT_THAT(resources.hosts, SizeIs(2));
  EXPECT_EQ(resources.hosts[1].name, "host budget of job demo");
  EXPECT_EQ(resources.hosts[1].bytes, MiB(10));
}

TEST(Plan, ARanksOwnHostLimitIsPartOfTheRequest) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2, 1, 0);
  const SessionId b = node.Attach("demo", 1, 2, 1, 1);
  Submit(node, a, 0, 0, "h0");
  Submit(node, b, 1, 1, "h1", MiB(3));
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const auto& hosts = node.to_solve[0].resources.hosts;
  ASSERT_THAT(hosts, SizeIs(2));
  EXPECT_EQ(hosts[1].name, "host limit of rank 1");
  EXPECT_EQ(hosts[1].bytes, MiB(3));
  EXPECT_THAT(hosts[1].profiles, ElementsAre(1));
}

// Guards against a request that omits a link's only limited direction.
TEST(Plan, ALinkWithOneLimitedDirectionLimitsThatDirection) {
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

TEST(Plan, ALinkLimitsAllLinksBelowIt) {
  NodeConfig config = SmallNode();
  config.links = {{"pcie0", 1e9, 1e9, "switch"},
                  {"pcie1", 1e9, 1e9, "switch"},
                  {"switch", 1.5e9, 1.2e9}};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0, 2, 1, 0);
  const SessionId b = node.Attach("demo", 1, 2, 1, 1);
  Submit(node, a, 0, 0, "h0");
  Submit(node, b, 1, 1, "h1");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const auto& links = node.to_solve[0].resources.links;
  ASSERT_THAT(links, SizeIs(3));
  EXPECT_THAT(links[0].profiles, ElementsAre(0));
  EXPECT_EQ(links[2].name, "switch");
  EXPECT_THAT(links[2].profiles, ElementsAre(0, 1));
  EXPECT_EQ(links[2].h2d_bytes_per_second, 1.5e9);
  EXPECT_EQ(links[2].d2h_bytes_per_second, 1.2e9);
}

TEST(Plan, ASharedMemoryLinkLimitsTheSumOfBothDirections) {
  NodeConfig config = SmallNode();
  config.links = {{"pcie0", 2e9, 0, "memory"},
                  {"pcie1", 0, 0, "memory"},
                  {"memory", 0, 0, "", 1.5e9}};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0);
  node.Attach("other", 0, 1, 1, /*gpu=*/1);
  Submit(node, a, 0, 0, "h0");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const auto& links = node.to_solve[0].resources.links;
  ASSERT_THAT(links, SizeIs(2));
  EXPECT_EQ(links[0].both_bytes_per_second, std::nullopt);
  EXPECT_EQ(links[1].name, "memory");
  EXPECT_EQ(links[1].both_bytes_per_second, 0.75e9);  // half is the other job's
  EXPECT_EQ(links[1].h2d_bytes_per_second, 0.75e9);
}

TEST(Plan, AnUnthrottledLinkIsLeftOutOfTheRequest) {
  NodeConfig config = SmallNode();
  config.links[0] = {"pcie0", 0, 0};
  CoreDriver node(config);
  const SessionId a = node.Attach("demo", 0);
  Submit(node, a, 0, 0, "h");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].resources.links, IsEmpty());
}

TEST(Plan, ARequestCountsOnlyFreeMemoryThatEveryLeaseCouldHave) {
  CoreDriver node;
  node.held = Held::kUnknown;
  const SessionId a = node.Attach("demo", 0);
  // The memory was freed but may still be mapped. Whole extents can be leased
  // again; the use of the odd tail cannot be predicted.
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease, node.Lease(a, Host(0), MiB(9)));
  node.Ask(a, FreeRequest{lease.lease});
  EXPECT_EQ(node.core.pool(Host(0)).free, MiB(23));
  EXPECT_EQ(node.core.pool(Host(0)).lingering, MiB(9));
  Submit(node, a, 0, 0, "h");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const Bytes budget = node.to_solve[0].resources.hosts[0].bytes;
  EXPECT_EQ(budget, MiB(31));
  EXPECT_THAT(node.Lease(a, Host(0), budget), sluice::testing::IsOk());
}

TEST(Plan, TheDeadlineStopsTheWorkerAndNotifiesTheRanks) {
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
  EXPECT_FALSE(node.NoticesTo<PlanFailedNotice>(a)[0].peer_left);
  // A late answer is dropped, as no rank waits for it.
  node.Apply(node.core.PlanSolved(round, plan::NodePlan{}, node.clock.Now()));
  EXPECT_THAT(node.NoticesTo<PlanReadyNotice>(a), IsEmpty());
}

// Guards against control characters of a worker's output in the log.
TEST(Plan, AWorkersErrorBecomesOneLine) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  Submit(node, a, 0, 0, "h0");
  node.Apply(node.core.PlanSolved(node.to_solve[0].round,
                                  absl::InternalError("no\r\x1b[2K\xfe"),
                                  node.clock.Now()));
  EXPECT_EQ(node.NoticesTo<PlanFailedNotice>(a).at(0).reason, "no??[2K?");
  EXPECT_THAT(node.core.log().events().back().text, HasSubstr("no??[2K?"));
}

TEST(Plan, ARankThatLeavesEndsTheRoundForOtherRanks) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2);
  const SessionId b = node.Attach("demo", 1, 2);
  Submit(node, a, 0, 0, "h0");
  node.Die(b);
  ASSERT_THAT(node.NoticesTo<PlanFailedNotice>(a), SizeIs(1));
  EXPECT_TRUE(node.NoticesTo<PlanFailedNotice>(a)[0].peer_left);
  // A death while the plan is being solved has the same effect.
  const SessionId c = node.Attach("demo", 1, 2);
  Submit(node, a, 0, 0, "h0");
  Submit(node, c, 1, 0, "h1");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  node.Die(c);
  EXPECT_TRUE(node.stopped.contains(node.to_solve[0].round));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(a), SizeIs(2));
}

KeyedUnit Unit(const std::string& key, Bytes size = Bytes(64)) {
  plan::UnitPlan unit{
      .trace = {.buffers = {{0, 0, 1, size}}, .end = 1},
      .placement = {.offsets = {Bytes(0)}, .peak = size, .lower_bound = size}};
  return {key, std::make_shared<const plan::UnitPlan>(std::move(unit))};
}

// Attaches a job of one rank, and submits its profile with `units`.
SessionId SubmitUnits(CoreDriver& node, const std::string& job,
                      const std::string& hash,
                      const std::vector<std::string>& units) {
  const SessionId id = node.Attach(job, 0);
  node.Ask(id, ProfileRequest{});
  const ReadProfile read = node.to_read.back();
  auto profile = std::make_shared<plan::RankProfile>();
  node.Apply(node.core.ProfileRead(read.session, read.request,
                                   ProfileWithHash{profile, hash, units},
                                   node.clock.Now()));
  return id;
}

TEST(Plan, SolvedUnitsArePassedToEveryLaterRequest) {
  CoreDriver node;
  SubmitUnits(node, "first", "h0", {"u1", "u2"});
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].known, IsEmpty());
  plan::NodePlan plan;
  plan.units_solved = 2;
  node.Apply(node.core.PlanSolved(node.to_solve[0].round, plan,
                                  node.clock.Now(), {Unit("u1"), Unit("u2")}));
  // The profile of another job, with other times, has unit u2 too.
  SubmitUnits(node, "second", "h1", {"u2", "u3", "u2"});
  ASSERT_THAT(node.to_solve, SizeIs(2));
  EXPECT_THAT(node.to_solve[1].known, SizeIs(1));
  plan.units_solved = plan.units_known = 1;
  node.Apply(node.core.PlanSolved(node.to_solve[1].round, plan,
                                  node.clock.Now(), {Unit("u3")}));
  const Snapshot all = node.core.TakeSnapshot(nullptr, node.clock.Now());
  EXPECT_EQ(all.stats->plan_units[UnitOutcome::kSolved], 3u);
  EXPECT_EQ(all.stats->plan_units[UnitOutcome::kKnown], 1u);
}

KeyedUnit UnitOfBuffers(const std::string& key, size_t buffers) {
  plan::UnitPlan unit = *Unit(key).unit;
  unit.trace.buffers.resize(buffers);
  return {key, std::make_shared<const plan::UnitPlan>(unit)};
}

TEST(UnitCache, TheLeastRecentlyUsedUnitIsDroppedAboveTheBufferLimit) {
  constexpr size_t kMost = plan::kMaxUnitBuffers;
  constexpr size_t kUnits = UnitCache::kBuffersKept / kMost;
  UnitCache cache;
  std::vector<std::string> keys;
  for (size_t i = 0; i < kUnits; ++i) {
    keys.push_back(fmt::to_string(i));
    cache.Add(UnitOfBuffers(keys.back(), kMost));
  }
  cache.CheckInvariants();
  EXPECT_THAT(cache.Find(keys), SizeIs(kUnits));
  for (const std::string& key : keys) {
    if (key != "5") cache.Find({key});
  }
  cache.Add(UnitOfBuffers("one more", 1));
  cache.CheckInvariants();
  EXPECT_THAT(cache.Find({"5"}), IsEmpty());
  EXPECT_THAT(cache.Find(keys), SizeIs(kUnits - 1));
  EXPECT_THAT(cache.Find({"one more"}), SizeIs(1));
  cache.Add(UnitOfBuffers("too large", kMost + 1));
  EXPECT_THAT(cache.Find({"too large"}), IsEmpty());
}

TEST(UnitCache, TheCacheHoldsAsManyUnitsAsARequest) {
  UnitCache cache;
  for (size_t i = 0; i <= plan::kMaxUnits; ++i) {
    cache.Add(UnitOfBuffers(fmt::to_string(i), 0));
  }
  cache.CheckInvariants();
  EXPECT_THAT(cache.Find({"0"}), IsEmpty());
  EXPECT_THAT(cache.Find({"1", fmt::to_string(plan::kMaxUnits)}), SizeIs(2));
}

TEST(Plan, AUnitWithoutAProofIsNotKept) {
  CoreDriver node;
  SubmitUnits(node, "demo", "h0", {"u1"});
  plan::UnitPlan unproved = *Unit("u1").unit;
  unproved.placement.lower_bound = Bytes(1);
  node.Apply(node.core.PlanSolved(
      node.to_solve[0].round, plan::NodePlan{}, node.clock.Now(),
      {{"u1", std::make_shared<const plan::UnitPlan>(unproved)}}));
  SubmitUnits(node, "other", "h1", {"u1"});
  EXPECT_THAT(node.to_solve.back().known, IsEmpty());
}

TEST(Plan, TheSnapshotShowsPlanProgressToItsUserAndTheOperator) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2);
  const SessionId b = node.Attach("demo", 1, 2);
  Submit(node, a, 0, 0, "h0");
  const auto planning = [&node](const Principal* viewer) {
    return node.core.TakeSnapshot(viewer, node.clock.Now()).planning;
  };
  ASSERT_THAT(planning(nullptr), SizeIs(1));
  EXPECT_EQ(planning(nullptr)[0].state, PlanningSnapshot::State::kCollecting);
  EXPECT_EQ(planning(nullptr)[0].ranks, 1);
  EXPECT_EQ(planning(nullptr)[0].wanted, 2);
  Submit(node, b, 1, 0, "h1");
  node.clock.Advance(absl::Seconds(3));
  node.core.PlanProgressed(node.to_solve[0].round, {2, 5, "of rank 0"});
  ASSERT_THAT(planning(nullptr), SizeIs(1));
  EXPECT_EQ(planning(nullptr)[0].state, PlanningSnapshot::State::kSolving);
  EXPECT_EQ(planning(nullptr)[0].elapsed, absl::Seconds(3));
  EXPECT_EQ(planning(nullptr)[0].left, absl::Seconds(23));
  EXPECT_EQ(planning(nullptr)[0].progress->done, 2);
  const Principal stranger{77, "/b"};
  EXPECT_THAT(planning(&stranger), IsEmpty());
  node.Apply(node.core.PlanSolved(node.to_solve[0].round, plan::NodePlan{},
                                  node.clock.Now()));
  EXPECT_THAT(planning(nullptr), IsEmpty());
}

TEST(Plan, APlanIsVisibleOnlyToItsPrincipal) {
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
