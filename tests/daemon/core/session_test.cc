// Tests sessions: which peers may attach, that requests are executed once, step
// reports, snapshots, deaths, evictions.
#include "daemon/core/session.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

absl::Status StatusOf(const std::optional<Reply>& reply) {
  if (!reply) return absl::UnavailableError("no reply");
  const auto* status = std::get_if<absl::Status>(&*reply);
  return status != nullptr ? *status : absl::OkStatus();
}

HelloRequest HelloOfRank(int rank, int ranks, const std::string& job = "demo") {
  return {.job = job,
          .rank = Rank(rank),
          .world_size = ranks,
          .local_ranks = ranks};
}

TEST(HelloOfRank, AHelloMustBeTheFirstRequestAndTheOnlyHello) {
  CoreDriver node;
  const SessionId a = node.Connect();
  EXPECT_THAT(StatusOf(node.Ask(a, LeaseRequest{Gpu(0), MiB(4)})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("begins with Hello")));
  EXPECT_THAT(StatusOf(node.Ask(a, HelloOfRank(0, 1))), IsOk());
  EXPECT_THAT(StatusOf(node.Ask(a, HelloOfRank(0, 1))),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(HelloOfRank, ADuplicateRankAndAnotherWorldSizeAreRefused) {
  CoreDriver node;
  node.Attach("demo", 0, 2);
  const SessionId b = node.Connect();
  EXPECT_THAT(StatusOf(node.Ask(b, HelloOfRank(0, 2))),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("attached already, by process 1001")));
  EXPECT_THAT(StatusOf(node.Ask(b, HelloOfRank(1, 3))),
              StatusIs(absl::StatusCode::kInvalidArgument));
  HelloRequest no_gpu = HelloOfRank(1, 2);
  no_gpu.gpu = DeviceIndex(2);
  EXPECT_THAT(StatusOf(node.Ask(b, no_gpu)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no GPU 2: this node has 2")));
  // The session survives each refusal.
  EXPECT_THAT(StatusOf(node.Ask(b, HelloOfRank(1, 2))), IsOk());
  // Another principal's job with the same name is a different job.
  const SessionId c = node.Connect(/*uid=*/2);
  EXPECT_THAT(StatusOf(node.Ask(c, HelloOfRank(0, 1))), IsOk());
}

TEST(HelloOfRank, RanksAndLocalRanksMustFitTheWorldSize) {
  const auto fine = [](int rank, int world, int local) {
    CoreDriver node;
    HelloRequest hello = HelloOfRank(rank, world);
    hello.local_ranks = local;
    const absl::Status status = StatusOf(node.Ask(node.Connect(), hello));
    EXPECT_EQ(absl::IsInvalidArgument(status), !status.ok());
    return status.ok();
  };
  EXPECT_TRUE(fine(0, 1, 1));
  EXPECT_TRUE(fine(1, 2, 1));
  EXPECT_FALSE(fine(0, 1, 0));
  EXPECT_FALSE(fine(0, 1, 2));
  EXPECT_FALSE(fine(1, 1, 1));
}

TEST(HelloOfRank, RanksAreLimitedByTheGrantSlots) {
  NodeConfig config = SmallNode();
  config.max_sessions = kGrantSlots + 2;
  CoreDriver node(config);
  SessionId last;
  for (int i = 0; i < kGrantSlots; ++i) {
    last = node.Attach("demo", i, kGrantSlots);
  }
  const SessionId one_more = node.Connect();
  EXPECT_THAT(StatusOf(node.Ask(one_more, HelloOfRank(0, 1, "other"))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  node.Die(last);
  EXPECT_THAT(StatusOf(node.Ask(one_more, HelloOfRank(0, 1, "other"))), IsOk());
}

TEST(Observer, AnObserverMayNotSendRequestsOfRanks) {
  CoreDriver node;
  const SessionId observer = node.Connect();
  HelloRequest hello;
  hello.observer = true;
  EXPECT_THAT(StatusOf(node.Ask(observer, hello)), IsOk());
  for (const Request& body :
       {Request(StepReportRequest(StepReport{})), Request(ProfileRequest{})}) {
    EXPECT_THAT(StatusOf(node.Ask(observer, body)),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_THAT(StatusOf(node.Ask(observer, QueryRequest{PlanId(7)})),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(StatusOf(node.Ask(observer, QueryRequest{})), IsOk());
}

TEST(HelloOfRank, HalfOpenSessionsEndAtTheirDeadline) {
  CoreDriver node;
  const SessionId a = node.Connect();
  const SessionId b = node.Attach("demo", 0);
  EXPECT_EQ(node.core.NextDeadline(), node.clock.Now() + absl::Seconds(10));
  node.clock.Advance(absl::Seconds(10));
  node.Apply(node.core.Tick(node.clock.Now()));
  EXPECT_TRUE(node.closed.contains(a) && node.forgotten.contains(a));
  EXPECT_FALSE(node.closed.contains(b));
  EXPECT_EQ(node.core.NextDeadline(), absl::InfiniteFuture());
}

TEST(HelloOfRank, TheOldestHalfOpenSessionMakesRoom) {
  NodeConfig config = SmallNode();
  config.max_half_open = 3;
  CoreDriver node(config);
  std::vector<SessionId> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(node.Connect());
    node.clock.Advance(absl::Milliseconds(1));
  }
  EXPECT_THAT(node.closed, ::testing::ElementsAre(ids[0]));
  EXPECT_THAT(StatusOf(node.Ask(ids[3], HelloOfRank(0, 1))), IsOk());
}

TEST(HelloOfRank, AttachedSessionsAreNeverEndedToMakeRoom) {
  NodeConfig config = SmallNode();
  config.max_sessions = 2;
  CoreDriver node(config);
  const SessionId a = node.Attach("a", 0);
  const SessionId b = node.Attach("b", 0);
  const SessionId c = node.Connect();
  EXPECT_TRUE(node.closed.contains(c) && node.forgotten.contains(c));
  EXPECT_FALSE(node.closed.contains(a) || node.closed.contains(b));
}

TEST(Request, ARepeatedRequestIsExecutedOnceAndAnsweredAgain) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  const Request ask = LeaseRequest{Gpu(0), MiB(8)};
  const auto first = node.Ask(a, ask, RequestId(900));
  const auto again = node.Ask(a, ask, RequestId(900));
  EXPECT_EQ(std::get<GrantedReply>(*first).lease,
            std::get<GrantedReply>(*again).lease);
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, MiB(8));
  // After this free, another session may have the lease's extents.
  node.Ask(a, FreeRequest{std::get<GrantedReply>(*first).lease});
  EXPECT_THAT(StatusOf(node.Ask(a, ask, RequestId(900))),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("freed since")));
}

TEST(Request, ARequestOlderThanTheWindowIsRefusedAndNotExecuted) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  for (uint64_t i = 0; i <= RequestHistory::kWindow; ++i) {
    node.Ask(a, QueryRequest{}, RequestId(900 + i));
  }
  EXPECT_THAT(
      StatusOf(node.Ask(a, LeaseRequest{Gpu(0), MiB(4)}, RequestId(900))),
      StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(node.core.pool(Gpu(0)).leased, Bytes(0));
  EXPECT_THAT(StatusOf(node.Ask(a, QueryRequest{}, RequestId(901))), IsOk());
}

TEST(Request, ARequestRepeatedWhileItRunsIsExecutedOnce) {
  CoreDriver node;
  node.make_at_once = false;
  const SessionId a = node.Attach("demo", 0);
  EXPECT_FALSE(node.Ask(a, LeaseRequest{Gpu(0), MiB(4)}, RequestId(900)));
  EXPECT_FALSE(node.Ask(a, LeaseRequest{Gpu(0), MiB(4)}, RequestId(900)));
  EXPECT_THAT(node.to_make, SizeIs(1));
}

// Guards against users that fill the saved state with error texts.
TEST(RequestHistory, TheOldestRequestsAreForgottenIfErrorsAreLong) {
  RequestHistory history;
  for (uint64_t i = 1; i <= RequestHistory::kWindow; ++i) {
    ASSERT_EQ(history.Begin(RequestId(i)), RequestHistory::Seen::kNew);
    history.Answer(RequestId(i), absl::NotFoundError(std::string(1000, 'x')));
  }
  const size_t kept = history.requests().size();
  EXPECT_EQ(kept, RequestHistory::kMostText / 1000 + 1);
  EXPECT_EQ(history.Begin(RequestId(RequestHistory::kWindow - kept)),
            RequestHistory::Seen::kForgotten);
  EXPECT_EQ(history.Begin(RequestId(RequestHistory::kWindow)),
            RequestHistory::Seen::kAnswered);
}

// Errors that Clear, Load or TakeBack removes are not counted any more.
TEST(RequestHistory, RoomOfForgottenErrorsIsReused) {
  RequestHistory history;
  uint64_t last = 0;
  const auto fill = [&] {
    for (int i = 0; i < 100; ++i) {
      history.Begin(RequestId(++last));
      history.Answer(RequestId(last),
                     absl::NotFoundError(
                         std::string(RequestHistory::kMostText / 50, 'x')));
    }
    return history.requests().size();
  };
  const size_t most = fill();
  history.Clear();
  EXPECT_EQ(fill(), most);
  history.Load({}, RequestId(last));
  EXPECT_EQ(fill(), most);
  history.TakeBack(RequestId(last), absl::NotFoundError("y"));
  EXPECT_EQ(fill(), most);
}

TEST(RequestHistory, AcknowledgedAnswersAreForgottenButNoRunningRequest) {
  CoreDriver node;
  node.make_at_once = false;
  const SessionId a = node.Attach("demo", 0);
  const LeaseRequest ask{Gpu(0), MiB(4)};
  EXPECT_FALSE(node.Ask(a, ask, RequestId(900)));
  for (uint64_t id = 901; id < 905; ++id) {
    node.Ask(a, StepReport{}, RequestId(id));
  }
  node.core.Acknowledge(a, RequestId(903));
  const auto& requests = node.core.session(a)->history.requests();
  EXPECT_TRUE(requests.contains(RequestId(900)));  // it still runs
  EXPECT_TRUE(requests.contains(RequestId(904)));
  EXPECT_EQ(requests.size(), 2u);
  EXPECT_THAT(StatusOf(node.Ask(a, StepReport{}, RequestId(903))),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(node.Ask(a, ask, RequestId(900)));
  EXPECT_THAT(node.to_make, SizeIs(1))
      << "the repeated request was executed once";
}

TEST(RequestHistory, TheOldestRequestsAreForgottenAndThenRefused) {
  RequestHistory history;
  for (uint64_t i = 1; i <= RequestHistory::kWindow + 1; ++i) {
    ASSERT_EQ(history.Begin(RequestId(i)), RequestHistory::Seen::kNew);
    history.Answer(RequestId(i), FreedReply{});
  }
  EXPECT_EQ(history.Begin(RequestId(1)), RequestHistory::Seen::kForgotten);
  EXPECT_EQ(history.Begin(RequestId(2)), RequestHistory::Seen::kAnswered);
}

TEST(Death, OnlyPeersOfTheJobAreNotified) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2);
  const SessionId b = node.Attach("demo", 1, 2, 1, 1);
  const SessionId other_job = node.Attach("other", 0);
  const SessionId other_user = node.Attach("demo", 0, 1, /*uid=*/2);
  node.Die(b, {Exit::Kind::kSignal, 9});
  const auto told = node.NoticesTo<PeerDiedNotice>(a);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].rank, Rank(1));
  EXPECT_EQ(told[0].reason, "killed by signal 9");
  EXPECT_THAT(node.NoticesTo<PeerDiedNotice>(other_job), IsEmpty());
  EXPECT_THAT(node.NoticesTo<PeerDiedNotice>(other_user), IsEmpty());
  // The rank can attach again.
  node.Attach("demo", 1, 2, 1, 1);
  EXPECT_THAT(node.core.TakeSnapshot(nullptr, node.clock.Now()).jobs,
              SizeIs(3));
}

// Notices to each of 250 killed ranks about all other ranks would take 190 ms.
TEST(Death, RanksThatDieTogetherAreNotNotifiedOfEachOther) {
  CoreDriver node;
  std::vector<SessionId> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(node.Attach("demo", rank, 4));
  }
  ASSERT_THAT(node.Lease(ranks[2], Gpu(0), MiB(4)), IsOk());
  // Rank 1 closes its session before it dies, session 1000 is unknown, and
  // rank 0 exits with success.
  node.Apply(node.core.SocketEnded(ranks[1], node.clock.Now()));
  const Exit killed = {Exit::Kind::kSignal, 9};
  node.Run([&](Core& core) {
    return core.ProcessesGone({{ranks[0], {Exit::Kind::kStatus, 0}},
                               {ranks[1], killed},
                               {SessionId(1000), killed},
                               {ranks[2], killed}},
                              node.clock.Now());
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(node.forgotten.contains(ranks[rank])) << rank;
    EXPECT_THAT(node.NoticesTo<PeerDiedNotice>(ranks[rank]), IsEmpty()) << rank;
  }
  const auto told = node.NoticesTo<PeerDiedNotice>(ranks[3]);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0].rank, Rank(1));
  EXPECT_EQ(told[1].rank, Rank(2));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
}

TEST(Death, ADeathIsDetectedByExitStatusOrElseByRemainingLeases) {
  struct Case {
    Exit exit;
    bool with_lease;
    bool death;
  };
  for (const Case& c : {
           Case{{Exit::Kind::kStatus, 0}, false, false},
           Case{{Exit::Kind::kStatus, 0}, true, false},
           Case{{Exit::Kind::kStatus, 1}, false, true},
           Case{{Exit::Kind::kUnknown, 0}, false, false},
           Case{{Exit::Kind::kUnknown, 0}, true, true},
       }) {
    CoreDriver node;
    const SessionId a = node.Attach("demo", 0, 2);
    const SessionId b = node.Attach("demo", 1, 2);
    if (c.with_lease) {
      ASSERT_THAT(node.Lease(b, Gpu(0), MiB(4)), IsOk());
    }
    node.Die(b, c.exit);
    EXPECT_THAT(node.NoticesTo<PeerDiedNotice>(a), SizeIs(c.death ? 1 : 0));
  }
}

TEST(Death, AProcessThatReopensItsSessionCountsOnce) {
  CoreDriver node;
  node.held = Held::kUnknown;
  for (int i = 0; i < 50; ++i) {
    const SessionId rank = node.Connect(1, "/a", /*process=*/7);
    ASSERT_THAT(StatusOf(node.Ask(rank, HelloOfRank(0, 1))), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                node.Lease(rank, Gpu(0), MiB(8)));
    node.Ask(rank, FreeRequest{lease.lease});
    node.Apply(node.core.SocketEnded(rank, node.clock.Now()));
    const SessionId observer = node.Connect(1, "/a", 7);
    node.Ask(observer, HelloRequest{.observer = true});
    node.Apply(node.core.SocketEnded(observer, node.clock.Now()));
  }
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).sessions, 1);
  // The process may still map the freed memory, so no other user gets it before
  // the process ends.
  const SessionId other = node.Attach("demo", 0, 1, /*uid=*/2);
  EXPECT_THAT(node.Lease(other, Gpu(0), MiB(16)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(Death, AClosedSessionWithMemoryStaysUntilItsProcessEnds) {
  CoreDriver node;
  std::vector<Core::Gone> gone;
  for (const Bytes size : {MiB(8), Bytes(0)}) {
    const SessionId rank = node.Connect(1, "/a", /*process=*/7);
    ASSERT_THAT(StatusOf(node.Ask(rank, HelloOfRank(0, 1))), IsOk());
    if (size > Bytes(0)) {
      ASSERT_THAT(node.Lease(rank, Gpu(0), size), IsOk());
    }
    node.Apply(node.core.SocketEnded(rank, node.clock.Now()));
    gone.push_back({rank, {Exit::Kind::kSignal, 9}});
  }
  EXPECT_THAT(node.forgotten, IsEmpty());
  EXPECT_EQ(node.core.pool(Gpu(0)).quarantined, MiB(8));
  node.Apply(node.core.ProcessesGone(gone, node.clock.Now()));
  EXPECT_EQ(node.core.pool(Gpu(0)).free, MiB(16));
}

TEST(Evict, AnEvictionNotifiesAndQuarantinesAndKillsOnlyIfAsked) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0, 2);
  node.Attach("demo", 1, 2);
  const SessionId other = node.Attach("other", 0);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(8)), IsOk());
  auto evicted =
      node.core.Evict("demo", std::nullopt, false, "why not", node.clock.Now());
  node.Apply(std::move(evicted.effects));
  EXPECT_EQ(evicted.sessions, 2);
  ASSERT_THAT(node.NoticesTo<EvictedNotice>(a), SizeIs(1));
  EXPECT_EQ(node.NoticesTo<EvictedNotice>(a)[0].reason, "why not");
  EXPECT_TRUE(node.closed.contains(a));
  EXPECT_FALSE(node.closed.contains(other));
  EXPECT_TRUE(node.killed.empty());
  EXPECT_EQ(node.core.pool(Gpu(0)).quarantined, MiB(8));
  // A later `kill` still finds the process, which keeps its mapping.
  evicted = node.core.Evict("demo", std::nullopt, true, "", node.clock.Now());
  node.Apply(std::move(evicted.effects));
  EXPECT_TRUE(node.killed.contains(a));
  EXPECT_EQ(evicted.sessions, 0);
  EXPECT_EQ(evicted.processes, 2);
}

// Guards against a reason of several lines that forges lines of the log.
TEST(Evict, AReasonIsOneLine) {
  CoreDriver node;
  const SessionId a = node.Attach("demo", 0);
  node.Apply(node.core
                 .Evict("demo", std::nullopt, false, "full\nerror \x1b[31m\xff",
                        node.clock.Now())
                 .effects);
  EXPECT_EQ(node.NoticesTo<EvictedNotice>(a).at(0).reason, "full?error ?[31m?");
  for (const LoggedEvent& event : node.core.log().events()) {
    EXPECT_THAT(event.text, Not(HasSubstr("\n")));
  }
}

TEST(Budgets, TheNameOfAJobIsOneLine) {
  CoreDriver node;
  ASSERT_THAT(
      node.Change(BudgetChange{{.job = "a\nerror"}, MiB(4), {}, "root\n"}),
      IsOk());
  EXPECT_THAT(node.core.log().events().back().text,
              HasSubstr("job a?error: GPU 4 MiB"));
}

// Guards against one user's flood of sessions that evicts sessions of others.
TEST(Sessions, AUsersFloodOfHalfOpenSessionsEvictsItsOwn) {
  NodeConfig config = SmallNode();
  config.max_half_open = 6;
  config.max_half_open_each = 4;
  CoreDriver node(config);
  const SessionId honest = node.Connect(/*uid=*/2);
  for (int i = 0; i < 50; ++i) node.Connect(/*uid=*/1);
  EXPECT_FALSE(node.closed.contains(honest));
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).half_open, 5);
  for (uint32_t uid = 3; uid < 8; ++uid) node.Connect(uid);
  EXPECT_FALSE(node.closed.contains(honest));
}

TEST(Snapshot, APlainUserSeesOnlyItsOwnJobs) {
  CoreDriver node;
  const SessionId a = node.Attach("mine", 0, 1, /*uid=*/1);
  const SessionId b = node.Attach("theirs", 0, 1, /*uid=*/2);
  ASSERT_THAT(node.Lease(a, Gpu(0), MiB(4)), IsOk());
  ASSERT_THAT(node.Lease(b, Gpu(0), MiB(4)), IsOk());
  const Principal* viewer =
      node.core.sessions().ViewerOf(*node.core.session(a));
  ASSERT_NE(viewer, nullptr);
  const Snapshot seen = node.core.TakeSnapshot(viewer, node.clock.Now());
  ASSERT_THAT(seen.jobs, SizeIs(1));
  EXPECT_EQ(seen.jobs[0].name, "mine");
  EXPECT_THAT(seen.budgets, SizeIs(2));  // its own budget, and its job's
  for (const LoggedEvent& event : seen.events) {
    EXPECT_EQ(event.principal.uid, 1u) << event.text;
  }
  EXPECT_FALSE(seen.stats.has_value());
  // The daemon's own user sees all budgets.
  const SessionId own = node.Connect(/*uid=*/999, "");
  EXPECT_EQ(node.core.sessions().ViewerOf(*node.core.session(own)), nullptr);
}

// Guards against uid 0 of a container that sees all jobs of a daemon run by
// root.
TEST(Snapshot, UidZeroOfAPodIsNoAdministratorOfARootDaemon) {
  NodeConfig config = SmallNode();
  config.own_uid = 0;
  CoreDriver node(config);
  const SessionId root = node.Connect(/*uid=*/0, "");
  ASSERT_NE(node.core.sessions().ViewerOf(*node.core.session(root)), nullptr);
  const SessionId pod = node.Connect(/*uid=*/0, "/kubepods/pod7");
  EXPECT_EQ(node.core.sessions().ViewerOf(*node.core.session(pod))->cgroup,
            "/kubepods/pod7");
}

TEST(Session, APrincipalEndsWithItsLastSessionAndExtent) {
  CoreDriver node;
  for (uint32_t uid = 10; uid < 30; ++uid) node.Die(node.Connect(uid));
  EXPECT_EQ(node.core.Save().ledger.principals.size(), 0u);
  const SessionId a = node.Attach("demo", 0, 1, /*uid=*/1);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease, node.Lease(a, Gpu(0), MiB(16)));
  node.Die(a);
  EXPECT_EQ(node.core.Save().ledger.principals.size(),
            1u);  // user 1's idle extents
  const SessionId b = node.Attach("demo", 0, 1, /*uid=*/2);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto other, node.Lease(b, Gpu(0), MiB(16)));
  EXPECT_EQ(node.core.Save().ledger.principals.size(),
            1u);  // only user 2 is left
  // The session ends while its first extent is being made, and making it fails.
  node.make_at_once = false;
  const SessionId c = node.Attach("demo", 0, 1, /*uid=*/3);
  node.Ask(c, LeaseRequest{Gpu(1), MiB(4)});
  node.Die(c);
  EXPECT_EQ(node.core.Save().ledger.principals.size(), 2u);
  node.MakeNext(absl::ResourceExhaustedError("no"));
  EXPECT_EQ(node.core.Save().ledger.principals.size(), 1u);
}

TEST(StepReport, LostReportsAreCountedWithTheNext) {
  CoreDriver node;
  const SessionId rank = node.Attach("demo", 0);
  const StepReport step{.step = 1,
                        .seconds = 1,
                        .h2d = MiB(1),
                        .stall_seconds = 0.5,
                        .tokens = 100};
  StepReport told = step;
  told.totals = Plus({}, step);
  node.Ask(rank, told);
  // Two of these reports are lost.
  for (int i = 0; i < 3; ++i) told.totals = Plus(told.totals, step);
  node.Ask(rank, told, RequestId(50));
  const auto job = [&] {
    const Snapshot seen = node.core.TakeSnapshot(nullptr, node.clock.Now());
    return seen.stats->jobs.jobs().begin()->second.stats;
  };
  EXPECT_EQ(job().steps, 4u);
  EXPECT_EQ(job().tokens, 400u);
  EXPECT_EQ(job().stall_seconds, 2);
  // A report without sums, as of an old client, is added to the counts.
  node.Ask(rank, step, RequestId(51));
  EXPECT_EQ(job().steps, 5u);
  EXPECT_EQ(job().tokens, 500u);
}

// A step's report adds only bytes that were not seen before.
TEST(StepReport, CopiesCountForTheRanksGpuAsSoonAsTheyAreSeen) {
  CoreDriver node;
  const SessionId rank = node.Attach("demo", 0, 1, /*uid=*/1, /*gpu=*/1);
  const auto expect = [&](Bytes h2d, Bytes d2h) {
    const Snapshot seen = node.core.TakeSnapshot(nullptr, node.clock.Now());
    EXPECT_EQ(seen.jobs.at(0).ranks.at(0).gpu, DeviceIndex(1));
    EXPECT_EQ(seen.stats->gpus.at(1).h2d, h2d);
    EXPECT_EQ(seen.stats->gpus.at(1).d2h, d2h);
  };
  node.core.CopiesSeen(
      {{node.core.session(rank)->grant_slot, {MiB(2).size(), MiB(3).size()}}},
      {});
  expect(MiB(2), MiB(3));
  node.Ask(rank, StepReport{.h2d = MiB(2), .d2h = MiB(4)});
  expect(MiB(2), MiB(4));
}

// The daemon adds up clients' reports for as long as it runs.
TEST(StepReport, NoReportMakesASumNegativeInfiniteOrStuck) {
  NodeConfig config = SmallNode();
  config.links[1] = {.name = "pcie1"};
  CoreDriver node(config);
  const SessionId liar = node.Attach("liar", 0);
  StepReport huge{.seconds = 3e7,
                  .h2d = Bytes((int64_t{1} << 60) - 1),
                  .d2h = Bytes((int64_t{1} << 60) - 1),
                  .stall_seconds = 3e7,
                  .tokens = int64_t{1} << 40,
                  .plan_mismatches = int64_t{1} << 40};
  for (int i = 0; i < 20; ++i) node.Ask(liar, huge);
  const auto told = [&](uint64_t gpu = 0) {
    return node.core.TakeSnapshot(nullptr, node.clock.Now())
        .stats->gpus.at(gpu);
  };
  // No time has passed, so only the tolerated excess of 64 GiB is counted.
  EXPECT_EQ(told().h2d, GiB(64));
  EXPECT_EQ(told().d2h, GiB(64));
  // The daemon still counts the copies of honest ranks.
  const SessionId honest = node.Attach("honest", 0);
  node.Ask(honest, StepReport{.h2d = MiB(5)});
  EXPECT_EQ(told().h2d, GiB(64) + MiB(5));
  // A link of unknown speed carries at most 1 TB/s.
  const SessionId other = node.Attach("other", 0, 1, /*uid=*/1, /*gpu=*/1);
  node.clock.Advance(absl::Seconds(2));
  node.Ask(other, huge);
  EXPECT_EQ(told(1).h2d, GiB(64) + Bytes(2'000'000'000'000));
  // The bytes that the link carries in a century fit into the type.
  node.clock.Advance(absl::Hours(24 * 36525));
  for (int i = 0; i < 20; ++i) node.Ask(liar, huge);
  EXPECT_GT(told().h2d, GiB(64));
}

}  // namespace
}  // namespace sluice::daemon
