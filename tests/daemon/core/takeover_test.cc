// What a daemon does first with what an earlier one saved.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class TakeOverTest : public ::testing::Test {
 protected:
  // The one that ends, and the one that goes on with what it saved.
  void TakeOver(const std::set<SessionId>& reached) {
    after_.Inherit(before_);
    after_.Run(
        [&](Core& core) { return core.TakeOver(reached, after_.clock.Now()); });
  }
  CoreDriver before_, after_;
};

// The next daemon finds slower links: another configuration, or measurement.
class TakeOverOfSlowerLinks : public ::testing::Test {
 protected:
  static NodeConfig With(const LinkSpeed& first) {
    NodeConfig node = SmallNode();
    node.links[0] = first;
    return node;
  }
  static void TakeOver(const CoreDriver& from, CoreDriver& to,
                       const std::set<SessionId>& reached) {
    to.Inherit(from);
    to.Run([&](Core& core) { return core.TakeOver(reached, to.clock.Now()); });
  }
  static double Guaranteed(const CoreDriver& node, SessionId id) {
    return node.core.session(id)->guaranteed_bytes_per_second;
  }
  static std::vector<std::string> Refusals(const CoreDriver& node) {
    std::vector<std::string> texts;
    for (const LoggedEvent& event : node.core.log().events()) {
      if (event.kind == EventKind::kRefuse) texts.push_back(event.text);
    }
    return texts;
  }
  CoreDriver before_;
};

// Guards against a guarantee that is lowered without a notice.
TEST_F(TakeOverOfSlowerLinks,
       ALoweredGuaranteeIsReportedWithBothRatesAndTheReason) {
  const SessionId a = before_.Attach("a", 0, 1, 1, 0, 0.5e9),
                  b = before_.Attach("b", 0, 1, 2, 0, 0.4e9),
                  c = before_.Attach("c", 0, 1, 3, 1, 0.5e9);
  CoreDriver after(With({"pcie0", 0.8e9, 2e9}));
  TakeOver(before_, after, {a, b, c});
  // One user has half of a link, and all together 0.9: the first ones first.
  EXPECT_EQ(Guaranteed(after, a), 0.4e9);
  EXPECT_EQ(Guaranteed(after, b), 0.32e9);
  EXPECT_EQ(Guaranteed(after, c), 0.5e9) << "of another link";
  EXPECT_THAT(after.lowered,
              ElementsAre(Pair(after.core.session(a)->grant_slot, 0.4e9),
                          Pair(after.core.session(b)->grant_slot, 0.32e9)));
  const auto told = after.NoticesTo<TakenOverNotice>(a);
  ASSERT_THAT(told, SizeIs(1));
  ASSERT_TRUE(told[0].lowered);
  EXPECT_EQ(told[0].lowered->bytes_per_second, 0.4e9);
  EXPECT_EQ(told[0].lowered->why,
            "its guarantee is 400.00 MB/s instead of 500.00 MB/s since another "
            "daemon took over: link pcie0 promises at most 400.00 MB/s to one "
            "user now, of which 0.00 MB/s are promised already; what it copies "
            "beyond that has a fair share");
  EXPECT_FALSE(after.NoticesTo<TakenOverNotice>(c).at(0).lowered);
  EXPECT_THAT(Refusals(after),
              ElementsAre("rank 0 of job a: " + told[0].lowered->why,
                          HasSubstr("320.00 MB/s instead of 400.00 MB/s")));
  const Snapshot shown = after.core.TakeSnapshot(nullptr, after.clock.Now());
  EXPECT_EQ(shown.jobs.at(0).ranks.at(0).guaranteed_bytes_per_second, 0.4e9);
  EXPECT_EQ(shown.jobs.at(0).ranks.at(0).guarantee_lowered,
            told[0].lowered->why);
  EXPECT_THAT(shown.jobs.at(2).ranks.at(0).guarantee_lowered, IsEmpty());
}

// A daemon may end before its rank has read the notice.
TEST_F(TakeOverOfSlowerLinks, EachDaemonReportsItAndTheFirstLogsIt) {
  const SessionId a = before_.Attach("a", 0, 1, 1, 0, 0.5e9);
  CoreDriver after(With({"pcie0", 0.8e9, 2e9})),
      third(With({"pcie0", 0.8e9, 2e9})), fast;
  TakeOver(before_, after, {a});
  TakeOver(after, third, {a});
  EXPECT_EQ(Guaranteed(third, a), 0.4e9);
  EXPECT_THAT(third.lowered, IsEmpty());
  const auto told = third.NoticesTo<TakenOverNotice>(a);
  ASSERT_TRUE(told.at(0).lowered);
  EXPECT_THAT(told[0].lowered->why, HasSubstr("instead of 500.00 MB/s"));
  EXPECT_THAT(Refusals(third), IsEmpty());
  // What is gone is not promised again by itself.
  TakeOver(third, fast, {a});
  EXPECT_EQ(Guaranteed(fast, a), 0.4e9);
}

TEST_F(TakeOverOfSlowerLinks, ARepeatedHelloIsAnsweredWithTheLoweredGuarantee) {
  const SessionId a = before_.Connect();
  const HelloRequest hello{.job = "a", .guaranteed_bytes_per_second = 0.5e9};
  const RequestId request(900);
  before_.Ask(a, hello, request);
  CoreDriver after(With({"pcie0", 0.8e9, 2e9}));
  TakeOver(before_, after, {a});
  const auto welcome = std::get<WelcomeReply>(*after.Ask(a, hello, request));
  EXPECT_EQ(welcome.guaranteed_bytes_per_second, 0.4e9);
  EXPECT_THAT(welcome.guarantee_refused, HasSubstr("instead of 500.00 MB/s"));
}

TEST_F(TakeOverOfSlowerLinks, ALinkWithoutASpeedPromisesNothing) {
  const SessionId a = before_.Attach("a", 0, 1, 1, 0, 0.5e9);
  CoreDriver after(With({"pcie0"}));
  TakeOver(before_, after, {a});
  EXPECT_EQ(Guaranteed(after, a), 0);
  EXPECT_THAT(after.NoticesTo<TakenOverNotice>(a).at(0).lowered->why,
              AllOf(HasSubstr("its guarantee is none instead of 500.00 MB/s"),
                    HasSubstr("is not known or not limited")));
}

TEST_F(TakeOverOfSlowerLinks, AnEndedSessionsGuaranteeIsFreeForOthers) {
  before_.Attach("a", 0, 1, 1, 0, 0.5e9);
  const SessionId b = before_.Attach("b", 0, 1, 1, 1, 0.5e9);
  NodeConfig one = With({"pcie0", 1e9, 1e9});
  one.gpus[1].link = "pcie0";
  CoreDriver after(one);
  TakeOver(before_, after, {b});
  EXPECT_EQ(Guaranteed(after, b), 0.5e9);
  EXPECT_THAT(Refusals(after), IsEmpty());
}

TEST_F(TakeOverTest, EverySessionIsNotifiedAndKeepsItsLeases) {
  const SessionId a = before_.Attach("a", 0), b = before_.Attach("b", 0);
  const auto lease = *before_.Lease(a, Gpu(0), MiB(8));
  TakeOver({a, b});
  EXPECT_THAT(after_.NoticesTo<TakenOverNotice>(a), SizeIs(1));
  EXPECT_THAT(after_.NoticesTo<TakenOverNotice>(b), SizeIs(1));
  EXPECT_EQ(after_.core.pool(Gpu(0)).leased, MiB(8));
  EXPECT_TRUE(std::holds_alternative<FreedReply>(
      *after_.Ask(a, FreeRequest{lease.lease})));
}

// Guards against a rank that waits for a dead peer after a takeover.
TEST_F(TakeOverTest, AnUnreportedDeathIsReported) {
  const SessionId a = before_.Attach("a", 0, 3), b = before_.Attach("a", 1, 3),
                  c = before_.Attach("a", 2, 3);
  before_.Die(b);
  EXPECT_TRUE(before_.core.NoticesSent());
  before_.Die(c);
  TakeOver({a});
  const auto told = after_.NoticesTo<PeerDiedNotice>(a);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].rank, Rank(2));
  EXPECT_EQ(told[0].reason, "killed by signal 9");
  EXPECT_TRUE(after_.core.NoticesSent());
  EXPECT_FALSE(after_.core.NoticesSent());
  CoreDriver third;
  third.Inherit(after_);
  third.Run([&](Core& core) { return core.TakeOver({a}, third.clock.Now()); });
  EXPECT_THAT(third.NoticesTo<PeerDiedNotice>(a), SizeIs(0));
}

TEST_F(TakeOverTest, ASessionWithoutItsSocketHasEnded) {
  const SessionId a = before_.Attach("a", 0);
  const SessionId half_open = before_.Connect();
  ASSERT_TRUE(before_.Lease(a, Gpu(0), MiB(8)).ok());
  TakeOver({});
  EXPECT_TRUE(after_.closed.contains(a));
  EXPECT_TRUE(after_.forgotten.contains(half_open));
  EXPECT_EQ(after_.core.pool(Gpu(0)).quarantined, MiB(8));
}

TEST_F(TakeOverTest, UnansweredDeviceRequestsAreRepeated) {
  before_.make_at_once = false;
  const SessionId a = before_.Attach("a", 0);
  const RequestId request(900);
  EXPECT_FALSE(before_.Ask(a, LeaseRequest{Gpu(0), MiB(8)}, request));
  TakeOver({a});
  // The reply is to the request that was asked then; repeated, it is the same.
  const auto reply = after_.replies.find({a, request});
  ASSERT_NE(reply, after_.replies.end());
  const auto granted = std::get<GrantedReply>(reply->second);
  EXPECT_THAT(granted.slices, SizeIs(2));
  EXPECT_EQ(std::get<GrantedReply>(
                *after_.Ask(a, LeaseRequest{Gpu(0), MiB(8)}, request)),
            granted);
}

TEST_F(TakeOverTest, AnInterruptedRequestIsExecutedWhenItIsRepeated) {
  const SessionId a = before_.Attach("a", 0);
  const RequestId request(900);
  EXPECT_FALSE(before_.Ask(a, ProfileRequest{}, request));
  before_.Ask(a, ProfileRequest{}, request);
  ASSERT_THAT(before_.to_read, SizeIs(1));  // it runs: nothing is done twice
  TakeOver({a});
  after_.Ask(a, ProfileRequest{}, request);
  EXPECT_THAT(after_.to_read, SizeIs(1));
}

TEST_F(TakeOverTest, AWaitingLeaseKeepsItsPlaceAndWaitsOnce) {
  const SessionId a = before_.Attach("a", 0), b = before_.Attach("b", 0);
  const auto held = *before_.Lease(a, Gpu(0), MiB(16));
  const RequestId request(900);
  const LeaseRequest asked{Gpu(0), MiB(8), absl::Minutes(1)};
  EXPECT_FALSE(before_.Ask(b, asked, request));
  TakeOver({a, b});
  EXPECT_FALSE(after_.Ask(b, asked, request));
  EXPECT_THAT(after_.core.waiting().waiters(), SizeIs(1));
  after_.Ask(a, FreeRequest{held.lease});
  const auto reply = after_.replies.find({b, request});
  ASSERT_NE(reply, after_.replies.end());
  EXPECT_TRUE(std::holds_alternative<GrantedReply>(reply->second));
}

TEST_F(TakeOverTest, TheDeviceIsAskedAboutLingeringMemoryAgain) {
  before_.answer_at_once = false;
  const SessionId a = before_.Attach("a", 0);
  const auto lease = *before_.Lease(a, Gpu(0), MiB(4));
  before_.Ask(a, FreeRequest{lease.lease});
  EXPECT_EQ(before_.core.pool(Gpu(0)).lingering, MiB(4));
  TakeOver({a});
  const absl::Time now = after_.clock.Now();
  after_.Run([&](Core& core) { return core.Tick(now); });
  EXPECT_EQ(after_.core.pool(Gpu(0)).lingering, Bytes(0));
}

TEST_F(TakeOverTest, PlanNoticesThatARankMayHaveMissedAreSentAgain) {
  const SessionId a = before_.Attach("a", 0);
  before_.Ask(a, ProfileRequest{});
  auto profile = std::make_shared<plan::RankProfile>();
  profile->kinds[0].layers = 1;
  const absl::Time now = before_.clock.Now();
  const ReadProfile read = before_.to_read.back();
  before_.Run([&](Core& core) {
    return core.ProfileRead(read.session, read.request,
                            ProfileWithHash{profile, "x", {}}, now);
  });
  {
    SCOPED_TRACE("it waits");
    CoreDriver while_it_waits;
    while_it_waits.Inherit(before_);
    while_it_waits.Run([&](Core& core) { return core.TakeOver({a}, now); });
    const auto told = while_it_waits.NoticesTo<TakenOverNotice>(a);
    ASSERT_THAT(told, SizeIs(1));
    EXPECT_EQ(told[0].plan, PlanId());
  }
  plan::NodePlan plan;
  plan.ranks.resize(1);
  const SolvePlan question = before_.to_solve.back();
  before_.Run(
      [&](Core& core) { return core.PlanSolved(question.round, plan, now); });
  const auto ready = before_.NoticesTo<PlanReadyNotice>(a);
  ASSERT_THAT(ready, SizeIs(1));
  TakeOver({a});
  const auto told = after_.NoticesTo<TakenOverNotice>(a);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].plan, ready[0].plan);
}

}  // namespace
}  // namespace sluice::daemon
