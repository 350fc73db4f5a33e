// Tests planning all jobs together through Core: joins, changes, ends of jobs.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/replan_fixture.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using State = PlanningSnapshot::State;

TEST_F(Replan, AJoinIsPlannedTogetherWithRunningJobs) {
  a = Ask("a");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].jobs, ElementsAre(0));
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  ASSERT_THAT(node.to_solve, SizeIs(1));
  const SolvePlan& question = node.to_solve[0];
  EXPECT_THAT(question.jobs, ElementsAre(0, 1));
  EXPECT_THAT(question.profiles, SizeIs(2));
  ASSERT_FALSE(question.resources.hosts.empty());
  EXPECT_THAT(question.resources.hosts[0].profiles, ElementsAre(0, 1));
  Solve({{1, MiB(8)}, {0.5, MiB(4)}});
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(Changes(a), IsEmpty());
}

TEST_F(Replan, AJoinWaitsForMemoryThatOtherJobsFree) {
  JoinThatWaits();
  EXPECT_EQ(Ready(b), 0u);
  ASSERT_THAT(Changes(a), SizeIs(1));
  const auto waiting = PlanningOf("b");
  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->state, State::kWaiting);
  EXPECT_THAT(waiting->waiting_for, ElementsAre("job a"));
  EXPECT_EQ(PlanningOf("a")->state, State::kChanging);
  const auto plan = node.core.planning().FindPlan(Changes(a)[0], nullptr);
  ASSERT_THAT(plan->ranks, SizeIs(1));
  EXPECT_EQ(plan->ranks[0].alpha, 0.5);
  TakeChange(a, &held, MiB(16));
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(Planning(), IsEmpty());
  EXPECT_THAT(node.Lease(b, Host(0), MiB(16)), IsOk());
  EXPECT_EQ(Count(ChangeOutcome::kSent), 1u);
  EXPECT_EQ(Count(ChangeOutcome::kTaken), 1u);
}

TEST_F(Replan, MemoryBetweenAJobsOldAndNewLeaseStaysReservedForIt) {
  JoinThatWaits();
  Free(a, held);
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(node.Lease(b, Host(0), MiB(16)), IsOk());
  EXPECT_THAT(node.Lease(a, Host(0), MiB(16)), IsOk());
}

TEST_F(Replan, AfterItsDeadlineAJoinIsPlannedWithFreeMemory) {
  JoinThatWaits();
  Wait(absl::Seconds(59));
  EXPECT_THAT(node.to_solve, IsEmpty());
  Wait(absl::Seconds(1));
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].profiles, SizeIs(1));
  EXPECT_EQ(node.to_solve[0].resources.hosts[0].bytes, MiB(8));
  Solve({{0.25, MiB(8)}});
  EXPECT_EQ(Ready(b), 1u);
  // Job a takes its change late, and the memory that a frees is planned again.
  const LeaseId small = LeaseHost(b, MiB(8));
  TakeChange(a, &held, MiB(16));
  ASSERT_THAT(node.to_solve, SizeIs(1));
  Solve({{0.5, MiB(16)}, {0.5, MiB(16)}});
  EXPECT_THAT(Changes(b), SizeIs(1));
  EXPECT_THAT(Changes(a), SizeIs(1));
  EXPECT_NE(small, LeaseId());
}

TEST_F(Replan, AJobsEndLetsOtherJobsGrow) {
  JoinThatWaits();
  TakeChange(a, &held, MiB(16));
  node.Die(b);
  EXPECT_THAT(node.to_solve, IsEmpty());  // more jobs may end
  EXPECT_LE(node.core.NextDeadline(), node.clock.Now() + absl::Seconds(1));
  Wait(absl::Seconds(1));
  ASSERT_THAT(node.to_solve, SizeIs(1));
  Solve({{1, MiB(32)}});
  ASSERT_THAT(Changes(a), SizeIs(2));
  TakeChange(a, &held, MiB(32));
  EXPECT_THAT(Planning(), IsEmpty());
  EXPECT_EQ(node.core.NextDeadline(), absl::InfiniteFuture());
}

// Guards against jobs that keep copy rates which slower links cannot carry.
TEST_F(Replan, ATakeoverWithOtherLinkSpeedsPlansAgain) {
  a = Ask("a");
  Solve({{1, MiB(32)}});
  const auto take_over = [&](double speed) {
    NodeConfig config = Node();
    config.links[0] = {"pcie0", speed, speed};
    auto next = std::make_unique<CoreDriver>(config);
    next->Inherit(node);
    next->Run(
        [&](Core& core) { return core.TakeOver({a}, next->clock.Now()); });
    next->clock.Advance(absl::Seconds(1));
    next->Apply(next->core.Tick(next->clock.Now()));
    return next;
  };
  EXPECT_THAT(take_over(1e9)->to_solve, IsEmpty()) << "the speed is unchanged";
  const auto slow = take_over(2e7);
  ASSERT_THAT(slow->to_solve, SizeIs(1));
  const SolvePlan& question = slow->to_solve[0];
  EXPECT_EQ(question.resources.links.at(0).h2d_bytes_per_second, 2e7);
  slow->Apply(slow->core.PlanSolved(question.round, PlanOf({{0.5, MiB(16)}}),
                                    slow->clock.Now()));
  EXPECT_THAT(slow->NoticesTo<PlanChangedNotice>(a), SizeIs(1));
  std::string events;
  for (const LoggedEvent& event : slow->core.log().events()) {
    events += event.text + "\n";
  }
  EXPECT_THAT(events, HasSubstr("the speeds of links have changed"));
  EXPECT_THAT(events, HasSubstr("more than the link has left to promise"));
}

TEST_F(Replan, ADeathDuringAJoinUndoesTheJoin) {
  JoinThatWaits();
  node.Die(b);
  Wait(absl::Seconds(1));
  Solve({{1, MiB(32)}});
  // a is sent the plan by which it already runs, so that this plan holds
  // whichever changes a has seen.
  ASSERT_THAT(Changes(a), SizeIs(2));
  node.Ask(a, PlanTakenRequest{Changes(a)[0], true, ""});
  // the answer to the older change does not count
  ASSERT_TRUE(PlanningOf("a").has_value());
  node.Ask(a, PlanTakenRequest{Changes(a)[1], true, ""});
  EXPECT_THAT(Planning(), IsEmpty());
}

TEST_F(Replan, ADeathDuringAChangeMakesRoomForTheJoin) {
  JoinThatWaits();
  node.Die(a);
  EXPECT_EQ(Ready(b), 1u);
  Wait(absl::Seconds(1));
  Solve({{1, MiB(32)}});
  EXPECT_THAT(Changes(b), SizeIs(1));
}

TEST_F(Replan, AnEvictionCountsAsAJobsEnd) {
  JoinThatWaits();
  node.Apply(
      node.core.Evict("a", std::nullopt, true, "drained", node.clock.Now())
          .effects);
  node.Apply(node.core.ProcessesGone({{a, {}}}, node.clock.Now()));
  EXPECT_EQ(Ready(b), 1u);
}

TEST_F(Replan, MemoryOfARunningJobsPlanCannotBeReservedByOthers) {
  a = Ask("a");
  Solve({{1, MiB(32)}});
  const auto reserve = [&](uint32_t uid, Bytes bytes) {
    return node.Change(ReservationChange{Host(0), {uid, ""}, bytes, ""});
  };
  EXPECT_THAT(reserve(2, MiB(12)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("40 MiB of 40 MiB are, 32 MiB of it promised "
                                 "to plans of running jobs")));
  EXPECT_THAT(reserve(2, MiB(8)), IsOk());
  EXPECT_THAT(reserve(1, MiB(32)), IsOk())
      << "the promised memory belongs to a job of user 1";
}

TEST_F(Replan, AFullNodeMakesRoomForACalibration) {
  a = Ask("a");
  Solve({{1, MiB(40)}});
  held = LeaseHost(a, MiB(40));
  b = node.Attach("b", 0, 1, 1, 1);
  EXPECT_FALSE(node.Ask(b, LeaseRequest{Host(0), MiB(2)}).has_value());
  EXPECT_EQ(PlanningOf("b")->state, State::kWaiting);
  Wait(absl::Seconds(1));
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].profiles, SizeIs(1));
  EXPECT_EQ(node.to_solve[0].resources.hosts[0].bytes,
            MiB(40) - MiB(2) - MiB(4));
  Solve({{0.995, MiB(34)}});
  ASSERT_THAT(Changes(a), SizeIs(1));  // a small change, but needed
  TakeChange(a, &held, MiB(34));
  EXPECT_EQ(node.core.ledger().LeasesOf(b).size(), 1u);
  EXPECT_THAT(Planning(), IsEmpty());
}

TEST_F(Replan, ALeaseIsRefusedOnceReplanningFreesNoRoom) {
  a = Ask("a");
  Solve({{1, MiB(40)}});
  held = LeaseHost(a, MiB(40));
  b = node.Attach("b", 0, 1, 1, 1);
  node.Ask(b, LeaseRequest{Host(0), MiB(2)}, RequestId(77));
  Wait(absl::Seconds(1));
  plan::NodePlan none = PlanOf({{1, MiB(40)}});
  none.infeasible = "too much host memory";
  node.Apply(
      node.core.PlanSolved(node.to_solve.back().round, none, node.clock.Now()));
  const auto reply = node.replies.find({b, RequestId(77)});
  ASSERT_NE(reply, node.replies.end());
  EXPECT_THAT(std::get<absl::Status>(reply->second),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Changes(a), IsEmpty());
  // A GPU lease never waits for a plan. A host lease waits only if its own
  // principal's jobs could make room.
  EXPECT_TRUE(node.Ask(b, LeaseRequest{Gpu(1), MiB(64)}).has_value());
  const SessionId c = node.Attach("c", 0, 1, /*uid=*/2, 1);
  EXPECT_TRUE(node.Ask(c, LeaseRequest{Host(0), MiB(2)}).has_value());
}

TEST_F(Replan, NoSecondJobWaitsForARankThatNeverTakesItsPlan) {
  JoinThatWaits();
  Wait(absl::Seconds(60));
  Solve({{0.25, MiB(8)}});
  LeaseHost(b, MiB(8));
  Ask("c", 1);
  Solve({{0.25, MiB(8)}, {0.25, MiB(8)}, {0.25, MiB(8)}});
  // a still holds 32 MiB, so c is planned with the free memory at once.
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].profiles, SizeIs(1));
  EXPECT_EQ(PlanningOf("c")->state, State::kSolving);
}

TEST_F(Replan, AFailedWorkerLeavesRunningPlansUnchanged) {
  a = Ask("a");
  Solve({{1, MiB(32)}});
  held = LeaseHost(a, MiB(32));
  b = Ask("b", 1);
  node.Apply(node.core.PlanSolved(node.to_solve[0].round,
                                  absl::InternalError("it crashed"),
                                  node.clock.Now()));
  EXPECT_THAT(Changes(a), IsEmpty());
  // b is planned alone, with the free memory.
  ASSERT_THAT(node.to_solve, SizeIs(2));
  EXPECT_THAT(node.to_solve[1].profiles, SizeIs(1));
  EXPECT_EQ(node.to_solve[1].resources.hosts[0].bytes, MiB(8));
  node.Apply(node.core.PlanSolved(
      node.to_solve[1].round, absl::InternalError("again"), node.clock.Now()));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(b), SizeIs(1));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(a), IsEmpty());
}

TEST_F(Replan, AnInfeasibleJoinIsPlannedAloneAndChangesNoOtherJob) {
  a = Ask("a");
  Solve({{1, MiB(32)}});
  b = Ask("b", 1);
  plan::NodePlan none = PlanOf({{0, MiB(32)}, {0, MiB(32)}});
  none.infeasible = "too much host memory for 2 ranks";
  node.Apply(
      node.core.PlanSolved(node.to_solve[0].round, none, node.clock.Now()));
  EXPECT_THAT(Changes(a), IsEmpty());
  ASSERT_THAT(node.to_solve, SizeIs(2));
  EXPECT_THAT(node.to_solve[1].profiles, SizeIs(1));
}

TEST_F(Replan, JoinsDuringARoundArePlannedTogetherInTheNext) {
  a = Ask("a");  // its round is being solved
  b = Ask("b", 1);
  const SessionId c = Ask("c", 1);
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_EQ(PlanningOf("c")->state, State::kQueued);
  Solve({{1, MiB(8)}});
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].jobs, ElementsAre(0, 1, 2));
  Solve({{1, MiB(8)}, {1, MiB(8)}, {1, MiB(8)}});
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_EQ(Ready(c), 1u);
}

// Guards against a large profile of one user that delays another user's job.
TEST_F(Replan, ARoundThatAnotherUserWaitsForGetsAShorterLimit) {
  a = Ask("a");
  const PlanRoundId first = node.to_solve.back().round;
  EXPECT_EQ(node.to_solve.back().who.uid, 1u);
  Ask("a too", 1);
  EXPECT_THAT(node.hurried, ::testing::IsEmpty())
      << "a job of the same user hurries no round";
  b = Ask("b", 1, 2);
  EXPECT_THAT(node.hurried, ElementsAre(first));
}

// Guards against a user that gets more turns by more jobs or repeated requests.
TEST_F(Replan, UsersTakeTurnsWithJointRounds) {
  a = Ask("a");
  Ask("a2", 1);
  b = Ask("b", 1, 2);
  Ask("a3");
  Solve({{1, MiB(8)}});
  EXPECT_EQ(node.to_solve.back().who.uid, 2u) << "user 1 has just had a turn";
  EXPECT_THAT(node.to_solve.back().jobs, ElementsAre(0, 1));
  Solve({{1, MiB(8)}, {1, MiB(8)}});
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(node.to_solve.back().jobs, ElementsAre(0, 1, 2, 3));
}

// Guards against one user's long solve that keeps other users' jobs waiting.
TEST_F(Replan, AJointRoundIsCutOffAtItsShareAndItsJobsArePlannedAlone) {
  a = Ask("a");
  const PlanRoundId hard = node.to_solve.back().round;
  Wait(absl::Seconds(10));
  EXPECT_TRUE(node.stopped.empty()) << "no other user's job waits";
  b = Ask("b", 1, 2);
  EXPECT_THAT(node.hurried, ElementsAre(hard));
  EXPECT_TRUE(node.stopped.empty()) << "the worker gets time to write its plan";
  Wait(JointPlanning::kShare / 2);
  EXPECT_TRUE(node.stopped.contains(hard));
  ASSERT_THAT(node.to_solve, SizeIs(3));
  EXPECT_EQ(node.to_solve[1].who.uid, 1u);
  EXPECT_EQ(node.to_solve[2].who.uid, 2u);
  Solve({{1, MiB(8)}});
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(a), IsEmpty());
  Solve({{1, MiB(8)}});
  EXPECT_EQ(Ready(a), 1u);
}

TEST_F(Replan, AnEndOfAnotherUsersJobDoesNotStopAJoin) {
  a = Ask("a", 0, 2);
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  const PlanRoundId round = node.to_solve.back().round;
  node.Die(a);
  EXPECT_FALSE(node.stopped.contains(round));
  Solve({{1, MiB(8)}, {1, MiB(8)}});
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(Changes(a), IsEmpty());
  Wait(absl::Seconds(1));
  ASSERT_THAT(node.to_solve, SizeIs(1))
      << "b is planned alone, with the freed memory";
  EXPECT_THAT(node.to_solve[0].profiles, SizeIs(1));
}

TEST_F(Replan, ARanksEndStopsTheJointRoundAndOtherJobsArePlannedAgain) {
  a = Ask("a");
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  const PlanRoundId round = node.to_solve.back().round;
  node.Die(a);
  EXPECT_TRUE(node.stopped.contains(round));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(b), IsEmpty());
  EXPECT_THAT(node.to_solve.back().profiles, SizeIs(1));
  Solve({{1, MiB(8)}});
  EXPECT_EQ(Ready(b), 1u);
}

TEST_F(Replan, SmallDifferencesCauseNoChange) {
  a = Ask("a");
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  Solve({{1 - 0.9 / 64, MiB(8)}, {1, MiB(8)}});
  EXPECT_THAT(Changes(a), IsEmpty());
  // a is sent a small change only if c does not fit without it. c just fits.
  const SessionId c = Ask("c", 1);
  Solve({{1 - 0.9 / 64, MiB(8) - KiB(64)},
         {1, MiB(8)},
         {1, MiB(24) - 3 * MiB(4)}});
  EXPECT_THAT(Changes(a), IsEmpty());  // a, b and c use all 28 MiB
  EXPECT_EQ(Ready(c), 1u);
}

TEST_F(Replan, APlanOfOneJobShowsThatItsGpuLimitsIt) {
  a = Ask("a", 0, /*uid=*/1);
  plan::NodePlan answer = PlanOf({{0.5, MiB(8)}});
  answer.limits = {{.what = "GPU of rank 0"}};
  node.Apply(
      node.core.PlanSolved(node.to_solve[0].round, answer, node.clock.Now()));
  ASSERT_EQ(Ready(a), 1u);
  const Principal one{1, "/a"};
  const auto plan = node.core.planning().FindPlan(
      node.NoticesTo<PlanReadyNotice>(a)[0].plan, &one);
  ASSERT_NE(plan, nullptr);
  ASSERT_THAT(plan->limits, SizeIs(1));
  EXPECT_EQ(plan->limits[0].what, "GPU of rank 0");
}

TEST_F(Replan, AJointPlanShowsNothingOfAnotherPrincipalsJobs) {
  a = Ask("a", 0, /*uid=*/1);
  Solve({{1, MiB(16)}});
  held = LeaseHost(a, MiB(16));
  b = Ask("b", 1, /*uid=*/2);
  plan::NodePlan answer = PlanOf({{0.5, MiB(8)}, {1, MiB(16)}});
  answer.limits = {{.what = "link pcie0 d2h"},
                   {.what = "link pcie1 d2h"},
                   {.what = "GPU of rank 0 of job 0"},
                   {.what = "GPU of rank 0 of job 1"},
                   {.what = "host of NUMA node 0"},
                   {.what = "host of NUMA node 0 for user 1"},
                   {.what = "host of NUMA node 0 for user 2"}};
  node.Apply(
      node.core.PlanSolved(node.to_solve[0].round, answer, node.clock.Now()));
  const Principal two{2, "/a"};
  ASSERT_EQ(Ready(b), 1u);
  const PlanId id = node.NoticesTo<PlanReadyNotice>(b)[0].plan;
  const auto plan = node.core.planning().FindPlan(id, &two);
  ASSERT_NE(plan, nullptr);
  ASSERT_THAT(plan->ranks, SizeIs(1));
  EXPECT_EQ(plan->ranks[0].alpha, 1);
  ASSERT_THAT(plan->limits, SizeIs(4));
  EXPECT_EQ(plan->limits[0].what, "link pcie1 d2h");
  EXPECT_EQ(plan->limits[1].what, "GPU of rank 0");
  EXPECT_EQ(plan->limits[3].what, "host of NUMA node 0 for user 2");
  const Snapshot seen = node.core.TakeSnapshot(&two, node.clock.Now());
  ASSERT_THAT(seen.plans, SizeIs(1));
  EXPECT_EQ(seen.plans[0].plan->id, id);
  for (const PlanningSnapshot& each : seen.planning) EXPECT_NE(each.job, "a");
  for (const LoggedEvent& event : seen.events) {
    EXPECT_THAT(event.text, Not(HasSubstr("job a")));
  }
}

// Memory that a live process frees never goes to another principal.
TEST_F(Replan, AnotherPrincipalsHostMemoryIsNotInAJoinsBudget) {
  a = Ask("a", 0, /*uid=*/1);
  Solve({{1, MiB(24)}});
  held = LeaseHost(a, MiB(24));
  b = Ask("b", 1, /*uid=*/2);
  ASSERT_THAT(node.to_solve, SizeIs(1));
  std::map<std::string, Bytes> limits;
  for (const plan::HostLimit& limit : node.to_solve[0].resources.hosts) {
    limits[limit.name] = limit.bytes;
  }
  EXPECT_EQ(limits.at("host of NUMA node 0 for user 2"), MiB(16) - MiB(4));
  EXPECT_EQ(limits.at("host of NUMA node 0"), MiB(40) - 2 * MiB(4));
}

TEST(ReplanBudgets, BudgetsOfUsersAndJobsLimitTheirPlans) {
  NodeConfig config = SmallNode();
  config.principal_limits.host = MiB(30);
  config.named_job_limits["b"] = {.host = MiB(10)};
  CoreDriver node(config);
  const SessionId b = node.Attach("b", 0);
  ASSERT_THAT(node.Lease(b, Host(0), MiB(4)), IsOk());
  node.Ask(b, ProfileRequest{});
  node.Apply(node.core.ProfileRead(b, node.to_read[0].request,
                                   ProfileWithHash{ProfileOf(0, 0), "b", {}},
                                   node.clock.Now()));
  std::map<std::string, Bytes> limits;
  for (const plan::HostLimit& limit : node.to_solve[0].resources.hosts) {
    limits[limit.name] = limit.bytes;
  }
  EXPECT_EQ(limits.at("host of NUMA node 0"), MiB(32));
  EXPECT_EQ(limits.at("host budget of user 1"), MiB(30));
  EXPECT_EQ(limits.at("host budget of job b"), MiB(10));
}

TEST_F(Replan, ARefusedChangeKeepsTheOldPlanAndIsNotRepeated) {
  JoinThatWaits();
  node.Ask(a, PlanTakenRequest{Changes(a)[0], false, "no lease"});
  EXPECT_EQ(Count(ChangeOutcome::kRefused), 1u);
  EXPECT_EQ(Ready(b), 1u);  // no job will free memory any more
  Wait(absl::Minutes(5));
  EXPECT_THAT(Changes(a), SizeIs(1));
}

// After a refusal a join waits no longer for the refusing job's memory. If
// another job frees memory late, a join that was planned without that memory is
// planned again.
TEST_F(Replan, AJoinAfterARefusalIsReplannedWhenAnotherJobFreesMemory) {
  a = Ask("a");
  Solve({{1, MiB(16)}});
  held = LeaseHost(a, MiB(16));
  const SessionId c = Ask("c");
  Solve({{1, MiB(16)}, {1, MiB(16)}});
  LeaseId of_c = LeaseHost(c, MiB(16));
  b = Ask("b", 1);
  Solve({{0.5, MiB(8)}, {1, MiB(16)}, {0.5, MiB(8)}});
  Wait(absl::Seconds(60));
  Solve({{0.5, MiB(8)}});
  LeaseHost(b, MiB(8));
  node.Ask(a, PlanTakenRequest{Changes(a)[0], false, "no lease"});
  const SessionId d = Ask("d", 1);
  Solve({{1, MiB(16)}, {0.5, MiB(8)}, {0.5, MiB(8)}, {0.5, MiB(8)}});
  ASSERT_THAT(node.to_solve, SizeIs(1))
      << "d is planned alone, with free memory";
  Solve({{0, Bytes(0)}});
  EXPECT_EQ(Ready(d), 1u);
  TakeChange(c, &of_c, MiB(8));
  EXPECT_THAT(node.to_solve, SizeIs(1));
}

TEST_F(Replan, AGrowingJobIsNotifiedWhenItsMemoryIsFree) {
  // When c joins, b must shrink and a may grow, once b has freed its memory.
  a = Ask("a");
  Solve({{0.25, MiB(8)}});
  held = LeaseHost(a, MiB(8));
  b = Ask("b", 1);
  Solve({{0.25, MiB(8)}, {1, MiB(28)}});
  LeaseId large = LeaseHost(b, MiB(28));
  const SessionId c = Ask("c", 1);
  Solve({{0.5, MiB(16)}, {0.5, MiB(14)}, {0, MiB(2)}});
  EXPECT_THAT(Changes(b), SizeIs(1));
  EXPECT_THAT(Changes(a), IsEmpty());
  TakeChange(b, &large, MiB(14));
  EXPECT_THAT(Changes(a), SizeIs(1));
  EXPECT_EQ(Ready(c), 1u);
}

TEST_F(Replan, ASettledProfileIsPlannedWithoutOtherJobs) {
  ASSERT_THAT(node.Change(BudgetChange{{.uid = 1}, {}, MiB(30), ""}), IsOk());
  a = Ask("a");
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  Solve({{1, MiB(8)}, {1, MiB(8)}});
  auto settled = ProfileOf(0, 0);
  settled->settled = true;
  Submit(a, settled, "a settled");
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].profiles, SizeIs(1));
  const auto& hosts = node.to_solve[0].resources.hosts;
  ASSERT_THAT(hosts, SizeIs(2));
  EXPECT_EQ(hosts[1].name, "host budget of user 1");
  EXPECT_EQ(hosts[1].bytes, MiB(30))
      << "memory that is promised to b is not subtracted";
  Solve({{0.75, MiB(6)}});
  EXPECT_EQ(Ready(a), 2u);
  EXPECT_THAT(Changes(b), IsEmpty());
}

}  // namespace
}  // namespace sluice::daemon
