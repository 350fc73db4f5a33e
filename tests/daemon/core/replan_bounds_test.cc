// Tests which requests wait for other jobs, and how long, if jobs are planned
// together. Also tests the limits of kept plans and profiles.
#include <fmt/format.h>

#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/replan_fixture.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ReplanBounds : public Replan {
 protected:
  // Job a has all host memory; b is attached and will need some.
  void FullNode() {
    a = Ask("a");
    Solve({{1, MiB(40)}});
    held = LeaseHost(a, MiB(40));
    b = node.Attach("b", 0, 1, 1, 1);
  }
  bool Waits(SessionId id, Bytes size) {
    return !node.Ask(id, LeaseRequest{Host(0), size}).has_value();
  }
  std::map<std::string, Bytes> LimitsOfQuestion() {
    std::map<std::string, Bytes> limits;
    for (const auto& limit : node.to_solve.back().resources.hosts) {
      limits[limit.name] = limit.bytes;
    }
    return limits;
  }
  std::vector<std::string> EventsFor(const Principal& viewer) {
    std::vector<std::string> texts;
    for (const LoggedEvent& event :
         node.core.TakeSnapshot(&viewer, node.clock.Now()).events) {
      texts.push_back(event.text);
    }
    return texts;
  }
};

// A node with a device that never reports that a process unmapped memory.
class ReplanOnCuda : public Replan {
 protected:
  ReplanOnCuda() : Replan(Cuda()) { node.held = Held::kUnknown; }
  static NodeConfig Cuda() {
    NodeConfig config = Node();
    config.driver = "cuda";
    config.principal_limits = {.host = MiB(30)};
    return config;
  }
};

// Memory that a rank freed stays charged, so a plan must leave some room in a
// budget.
TEST_F(ReplanOnCuda, APlanLeavesRoomInABudgetForFreedMemoryStillMapped) {
  a = Ask("a");
  Solve({{1, MiB(30)}});
  held = LeaseHost(a, MiB(30));
  b = Ask("b", 1);
  Bytes limit;
  for (const auto& each : node.to_solve.back().resources.hosts) {
    if (each.name == "host budget of user 1") limit = each.bytes;
  }
  EXPECT_EQ(limit, MiB(30) - 2 * MiB(4));
  Solve({{0.3, MiB(11)}, {0.3, limit - MiB(11)}});
  TakeChange(a, &held, MiB(11));
  ASSERT_EQ(Ready(b), 1u);
  LeaseHost(b, limit - MiB(11));
}

TEST_F(ReplanBounds, ALeaseLargerThanAnyChangeCouldFreeIsRefusedAtOnce) {
  FullNode();
  EXPECT_FALSE(Waits(b, MiB(44)));
  EXPECT_FALSE(Waits(b, Bytes(int64_t{1} << 62)));
  EXPECT_THAT(Planning(), IsEmpty());
  ASSERT_THAT(node.Change(BudgetChange{{.job = "b"}, {}, MiB(1), ""}), IsOk());
  EXPECT_FALSE(Waits(b, MiB(2)));  // others' memory does not enlarge b's budget
}

// Guards against saving the session of each waiting lease with each event.
TEST_F(ReplanBounds, AWaitingLeaseIsNotSavedAgainWithEachEvent) {
  FullNode();
  ASSERT_TRUE(Waits(b, MiB(2)));
  node.CheckQuiet();
}

// Guards against a lease that waits for a plan until its deadline although its
// client gave it up.
TEST_F(ReplanBounds, ALeaseThatWaitsForAPlanIsGivenUpByItsClient) {
  FullNode();
  const RequestId request(900);
  ASSERT_FALSE(node.Ask(b, LeaseRequest{Host(0), MiB(2)}, request));
  EXPECT_THAT(node.core.waiting().for_plans(), SizeIs(1));
  node.Ask(b, GiveUpRequest{request});
  EXPECT_TRUE(node.core.waiting().empty());
  const auto answer = node.replies.find({b, request});
  ASSERT_NE(answer, node.replies.end());
  EXPECT_TRUE(absl::IsCancelled(std::get<absl::Status>(answer->second)));
}

TEST_F(ReplanBounds, AtMostOneLeaseOfASessionWaitsForAPlan) {
  FullNode();
  EXPECT_TRUE(Waits(b, MiB(2)));
  EXPECT_FALSE(Waits(b, MiB(2)));
}

TEST_F(ReplanBounds, ALeaseDoesNotWaitForItsOwnJob) {
  JoinThatWaits();
  Free(a, held);  // a shrinks
  LeaseHost(b, MiB(16));
  const SessionId other = node.Attach("other", 0);
  LeaseHost(other, MiB(24));
  EXPECT_FALSE(Waits(a, MiB(16)));
}

TEST_F(ReplanBounds, AWaitingLeaseOfAPlannedJobCountsOnce) {
  const SessionId m = Ask("m");
  Solve({{1, MiB(16)}});
  LeaseHost(m, MiB(16));
  a = Ask("a");
  Solve({{1, MiB(16)}, {0.5, MiB(8)}});
  ASSERT_EQ(Ready(a), 1u);
  b = node.Attach("b", 0);
  LeaseHost(b, MiB(20));
  ASSERT_TRUE(Waits(a, MiB(16)));  // 4 MiB are free, and m will free more
  Submit(b, ProfileOf(0, 0), "b");
  node.Apply(node.core.PlanSolved(node.to_solve.back().round,
                                  absl::InternalError("it crashed"),
                                  node.clock.Now()));
  // b is planned alone, with its own and the free memory, less an extent and 16
  // MiB for a.
  EXPECT_EQ(LimitsOfQuestion().at("host of NUMA node 0"),
            MiB(20) + MiB(4) - MiB(16) - MiB(4));
}

TEST_F(ReplanBounds, AWaitingLeaseLowersItsOwnUsersLimitAndItsJobIsHidden) {
  a = Ask("a", 0, /*uid=*/1);
  Solve({{1, MiB(16)}});
  held = LeaseHost(a, MiB(16));
  const SessionId c = Ask("c", 1, /*uid=*/2);
  Solve({{1, MiB(16)}, {1, MiB(24)}});
  LeaseHost(c, MiB(24));
  const SessionId d = node.Attach("secret", 0, 1, /*uid=*/2, 1);
  ASSERT_TRUE(Waits(d, MiB(2)));
  Wait(absl::Seconds(1));
  const auto limits = LimitsOfQuestion();
  EXPECT_EQ(limits.at("host of NUMA node 0 for user 1"), MiB(16) - MiB(4));
  EXPECT_EQ(limits.at("host of NUMA node 0 for user 2"),
            MiB(24) - MiB(2) - MiB(4));
  EXPECT_EQ(limits.at("host of NUMA node 0"), MiB(40) - MiB(2) - 2 * MiB(4));
  Solve({{0.5, MiB(12)}, {0.5, MiB(18)}});
  ASSERT_THAT(Changes(a), SizeIs(1));
  EXPECT_THAT(EventsFor({1, "/a"}),
              Contains(HasSubstr("another user's job needs room")));
  EXPECT_THAT(EventsFor({1, "/a"}), Each(Not(HasSubstr("secret"))));
  EXPECT_THAT(EventsFor({2, "/a"}),
              Contains(HasSubstr("job secret needs room to calibrate")));
}

TEST_F(ReplanBounds, AChangeThatCannotBeSentCountsAsRefused) {
  JoinThatWaits();
  const PlanId plan = Changes(a)[0];
  node.Apply(node.core.ChangeNotSent(a, PlanId(999), node.clock.Now()));
  ASSERT_TRUE(PlanningOf("a").has_value());
  node.Apply(node.core.ChangeNotSent(a, plan, node.clock.Now()));
  EXPECT_EQ(Count(ChangeOutcome::kRefused), 1u);
  EXPECT_EQ(Ready(b), 1u);
  EXPECT_THAT(Planning(), IsEmpty());
}

TEST_F(ReplanBounds, AnUnansweredChangeCountsAsRefusedAtItsDeadline) {
  JoinThatWaits();
  Wait(absl::Seconds(60));  // b's wait ends
  Solve({{0.25, MiB(8)}});
  LeaseHost(b, MiB(8));
  EXPECT_LE(node.core.NextDeadline(), node.clock.Now() + absl::Minutes(30));
  Wait(absl::Minutes(30));
  EXPECT_EQ(Count(ChangeOutcome::kRefused), 1u);
  EXPECT_THAT(Planning(), IsEmpty());
  EXPECT_EQ(node.core.NextDeadline(), absl::InfiniteFuture());
  // The next join counts a with its old memory, and so causes a change again.
  Ask("c", 1);
  Solve({{0.5, MiB(16)}, {0.25, MiB(8)}, {0.5, MiB(16)}});
  EXPECT_THAT(Changes(a), SizeIs(2));
  EXPECT_EQ(PlanningOf("c")->state, PlanningSnapshot::State::kWaiting);
}

TEST_F(ReplanBounds, AfterARefusalTheLastTakenPlanHolds) {
  JoinThatWaits();
  auto settled = ProfileOf(0, 0);
  settled->settled = true;
  Submit(a, settled, "a settled");
  Solve({{0.5, MiB(16)}});
  Free(a, held);
  held = LeaseHost(a, MiB(16));
  node.Die(b);
  Wait(absl::Seconds(1));
  Solve({{1, MiB(32)}});
  ASSERT_THAT(Changes(a), SizeIs(2));
  node.Ask(a, PlanTakenRequest{Changes(a)[0], true, "it came late"});
  node.Ask(a, PlanTakenRequest{Changes(a)[1], false, "no lease"});
  EXPECT_THAT(Planning(), IsEmpty());
  Ask("c", 1);
  Solve({{0.5, MiB(16)}, {0.5, MiB(16)}});
  EXPECT_THAT(Changes(a), SizeIs(2));  // a already runs by that plan
}

TEST_F(ReplanBounds, QueuedRanksAreNotifiedWhenOneOfThemLeaves) {
  a = Ask("a");  // its round is being solved
  b = node.Attach("b", 0, 2, 1, 0);
  const SessionId second = node.Attach("b", 1, 2, 1, 1);
  Submit(b, ProfileOf(0, 0), "b 0");
  Submit(second, ProfileOf(1, 1), "b 1");
  node.Apply(node.core.SocketEnded(second, node.clock.Now()));
  EXPECT_THAT(node.NoticesTo<PlanFailedNotice>(b), SizeIs(1));
}

TEST_F(ReplanBounds, AFailedExtentMakesRoomForAWaitingLease) {
  a = Ask("a");
  Solve({{1, MiB(36)}});
  LeaseHost(a, MiB(36));
  const SessionId c = node.Attach("c", 0);
  b = node.Attach("b", 0, 1, 1, 1);
  node.make_at_once = false;
  ASSERT_TRUE(Waits(c, MiB(4)));  // the extent is being made
  ASSERT_TRUE(Waits(b, MiB(2)));
  ASSERT_THAT(node.to_make, SizeIs(1));
  node.MakeNext(absl::InternalError("the device is out of it"));
  ASSERT_THAT(node.to_make, SizeIs(1));
  node.MakeNext();
  EXPECT_EQ(node.core.ledger().LeasesOf(b).size(), 1u);
}

TEST_F(ReplanBounds, PlansSentToNoJobAreNotKept) {
  a = Ask("a");
  Solve({{1, MiB(8)}});
  Ask("b", 1);
  Solve({{1, MiB(8)}, {1, MiB(8)}});
  EXPECT_THAT(node.core.TakeSnapshot(nullptr, node.clock.Now()).plans,
              SizeIs(2));
}

TEST_F(ReplanBounds, PlansInUseOrPromisedAreNeverDropped) {
  JoinThatWaits();
  const auto settled = std::make_shared<plan::RankProfile>(*ProfileOf(0, 0));
  settled->settled = true;
  const SessionId c = node.Attach("c", 0);
  for (size_t i = 0; i < 2 * PlanRounds::kPlansKept; ++i) {
    Submit(c, settled, "c" + std::to_string(i));
    Solve({{1, MiB(1)}});
  }
  const Snapshot seen = node.core.TakeSnapshot(nullptr, node.clock.Now());
  EXPECT_LE(seen.plans.size(), PlanRounds::kPlansKept);
  for (const JobSnapshot& job : seen.jobs) {
    EXPECT_NE(node.core.planning().FindPlan(job.plan, nullptr), nullptr)
        << job.name;
  }
  EXPECT_NE(node.core.planning().FindPlan(Changes(a)[0], nullptr), nullptr);
  TakeChange(a, &held, MiB(16));
  EXPECT_EQ(Ready(b), 1u);
}

// Two NUMA nodes of 20 MiB with a GPU each, and jobs of two ranks.
class ReplanNuma : public ::testing::Test {
 protected:
  static NodeConfig Node() {
    NodeConfig node = SmallNode();
    node.gpus[1].numa = NumaIndex(1);
    node.hosts = {{NumaIndex(0), MiB(20)}, {NumaIndex(1), MiB(20)}};
    return node;
  }
  // Attaches the job's ranks, which request a plan.
  void Ask(const std::string& job) {
    for (int rank = 0; rank < 2; ++rank) {
      ranks[job].push_back(
          node.Attach(job, rank, 2, 1, static_cast<uint64_t>(rank)));
    }
    for (int rank = 0; rank < 2; ++rank) {
      node.Ask(ranks[job][rank], ProfileRequest{});
      const ReadProfile read = node.to_read.back();
      node.Apply(node.core.ProfileRead(
          read.session, read.request,
          ProfileWithHash{ProfileOf(rank, static_cast<uint64_t>(rank)),
                          job + std::to_string(rank),
                          {}},
          node.clock.Now()));
    }
  }
  struct Part {
    double swap;
    Bytes host[2];
  };
  void Solve(const std::vector<Part>& parts) {
    plan::NodePlan plan;
    for (size_t job = 0; job < parts.size(); ++job) {
      for (int rank = 0; rank < 2; ++rank) {
        plan::RankPlan& each = plan.ranks.emplace_back();
        each.job = static_cast<int64_t>(job);
        each.rank = Rank(rank);
        each.host_bytes = parts[job].host[rank];
        each.classes = {{.name = "ffn_up",
                         .fractions = {.swap = parts[job].swap},
                         .why = {}}};
      }
    }
    node.Apply(node.core.PlanSolved(node.to_solve.back().round, plan,
                                    node.clock.Now()));
  }
  void Lease(const std::string& job, Bytes first, Bytes second) {
    EXPECT_THAT(node.Lease(ranks[job][0], Host(0), first), IsOk());
    EXPECT_THAT(node.Lease(ranks[job][1], Host(1), second), IsOk());
  }
  size_t Changes(const std::string& job) {
    return node.NoticesTo<PlanChangedNotice>(ranks[job][0]).size();
  }

  CoreDriver node{Node()};
  std::map<std::string, std::vector<SessionId>> ranks;
};

TEST_F(ReplanNuma, AJobThatShrinksAndGrowsDoesNotWaitForItself) {
  Ask("a");
  Solve({{1, {MiB(16), MiB(4)}}});
  Lease("a", MiB(16), MiB(4));
  const SessionId other = node.Attach("other", 0, 1, 1, 1);
  ASSERT_THAT(node.Lease(other, Host(1), MiB(16)), IsOk());
  Ask("b");
  Solve({{0.5, {MiB(4), MiB(8)}}, {0, {MiB(4), MiB(0)}}});
  EXPECT_EQ(Changes("a"), 1u);
}

TEST_F(ReplanNuma, TwoJobsThatWaitForEachOtherAreNotifiedTogether) {
  Ask("a");
  Solve({{1, {MiB(16), MiB(4)}}});
  Lease("a", MiB(16), MiB(4));
  Ask("b");
  Solve({{1, {MiB(16), MiB(4)}}, {1, {MiB(4), MiB(16)}}});
  Lease("b", MiB(4), MiB(16));
  Ask("c");
  Solve({{0.5, {MiB(4), MiB(12)}},
         {0.5, {MiB(12), MiB(4)}},
         {0, {MiB(4), MiB(4)}}});
  EXPECT_EQ(Changes("a"), 1u);
  EXPECT_EQ(Changes("b"), 1u);
}

class KeptProfiles : public Replan {
 protected:
  explicit KeptProfiles(NodeConfig config = Node())
      : Replan(std::move(config)) {}
  static std::shared_ptr<plan::RankProfile> Profile(size_t why) {
    auto profile = ProfileOf(0, 0);
    profile->classes[0].why = std::string(why, 'w');
    profile->classes[0].given = {.keep = 0, .swap = 1};
    return profile;
  }
  std::string Refusal(SessionId id, size_t why) {
    Submit(id, Profile(why), fmt::format("{}", why));
    const auto after = node.replies.upper_bound({id, RequestId(UINT64_MAX)});
    const Reply& reply = std::prev(after)->second;
    const auto* refused = std::get_if<absl::Status>(&reply);
    return refused != nullptr ? std::string(refused->message()) : "";
  }
  Bytes KeptOf(uint32_t uid) const {
    const auto kept = node.core.planning().KeptProfiles();
    const auto found = kept.find({uid, "/a"});
    return found != kept.end() ? found->second : Bytes(0);
  }
};

// Guards against profiles that no limit counts once their plans are made.
TEST_F(KeptProfiles, ProfilesAreLimitedByUserWhileTheirJobsRun) {
  const SessionId first = node.Attach("first", 0);
  EXPECT_EQ(Refusal(first, 2'000'000), "");
  Solve({{1, MiB(1)}});
  // Counts the profile, and five plans that may contain its text.
  EXPECT_GT(KeptOf(1), Bytes(12'000'000));
  EXPECT_LT(KeptOf(1), Bytes(12'020'000));
  const SessionId second = node.Attach("second", 0, 1, 1);
  EXPECT_THAT(Refusal(second, 900'000),
              AllOf(HasSubstr("user 1"),
                    HasSubstr("and the limit is 16777216: submit a profile of "
                              "fewer classes or with shorter names, or end")));
  EXPECT_EQ(node.core.stats().profiles_refused, 1u);
  EXPECT_TRUE(node.to_solve.empty());
  // Another user is not affected, nor is a profile that fits.
  EXPECT_EQ(Refusal(node.Attach("third", 0, 1, 2), 700'000), "");
  EXPECT_EQ(Refusal(second, 500'000), "");
  EXPECT_GT(KeptOf(1), Bytes(15'000'000));
}

class KeptProfilesOfAll : public KeptProfiles {
 protected:
  KeptProfilesOfAll() : KeptProfiles(WithLimit(MiB(20))) {}
  static NodeConfig WithLimit(Bytes all) {
    NodeConfig node = Node();
    node.profile_limit.all = all;
    return node;
  }
};

TEST_F(KeptProfilesOfAll, ProfilesAreLimitedOverAllUsers) {
  EXPECT_EQ(Refusal(node.Attach("a", 0, 1, 1), 1'500'000), "");
  Solve({{1, MiB(1)}});
  const SessionId other = node.Attach("b", 0, 1, 2);
  EXPECT_THAT(Refusal(other, 1'700'000), HasSubstr("20971520"));
  EXPECT_EQ(Refusal(other, 1'200'000), "");
}

TEST_F(KeptProfiles, AProfileIsReplacedByItsRanksNextProfile) {
  const SessionId rank = node.Attach("a", 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Refusal(rank, 1'500'000 + i), "");
    Solve({{1, MiB(1)}});
  }
  EXPECT_LT(KeptOf(1), Bytes(9'030'000));
  node.Die(rank);
  EXPECT_EQ(KeptOf(1), Bytes(0));
}

TEST_F(KeptProfiles, ProfilesHaveNoTracesOnceTheirPlansAreMade) {
  auto profile = Profile(10);
  const std::weak_ptr<plan::RankProfile> with_traces = profile;
  Submit(node.Attach("a", 0), std::move(profile), "a");
  EXPECT_FALSE(with_traces.expired());
  Solve({{1, MiB(1)}});
  EXPECT_TRUE(with_traces.expired());
}

TEST_F(KeptProfiles, ProfilesCountForTheNextDaemonToo) {
  const SessionId first = node.Attach("first", 0);
  EXPECT_EQ(Refusal(first, 1'500'000), "");
  Solve({{1, MiB(1)}});
  CoreDriver next(Node());
  next.Inherit(node);
  EXPECT_EQ(next.core.planning().KeptProfiles(),
            node.core.planning().KeptProfiles());
}

}  // namespace
}  // namespace sluice::daemon
