// Tests how a daemon takes over the state that an earlier daemon saved.
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
  // Lets `after_` continue from what `before_` saved, with the sockets of the
  // sessions `reached`.
  void TakeOver(const std::set<SessionId>& reached) {
    after_.Inherit(before_);
    after_.Run(
        [&](Core& core) { return core.TakeOver(reached, after_.clock.Now()); });
  }
  CoreDriver before_, after_;
};

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

TEST_F(TakeOverTest, RanksThatHoldMemoryOfALostGpuAreNamed) {
  const SessionId a = before_.Attach("a", 0);
  ASSERT_TRUE(before_.Lease(a, Gpu(0), MiB(8)).ok());
  NodeConfig config = SmallNode();
  for (GpuConfig& gpu : config.gpus) gpu.fault = "it is lost";
  CoreDriver after(config);
  after.Inherit(before_);
  after.Run([&](Core& core) { return core.TakeOver({a}, after.clock.Now()); });
  std::string log;
  for (const LoggedEvent& event : after.core.log().events()) {
    log += event.text + "\n";
  }
  EXPECT_THAT(log, HasSubstr("8 MiB of GPU 0 are held by rank 0"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("GPU 1")));
}

TEST_F(TakeOverTest, UnansweredDeviceRequestsAreRepeated) {
  before_.make_at_once = false;
  const SessionId a = before_.Attach("a", 0);
  const RequestId request(900);
  EXPECT_FALSE(before_.Ask(a, LeaseRequest{Gpu(0), MiB(8)}, request));
  TakeOver({a});
  // The reply answers the original request; a repeated request gets the same
  // reply.
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
  ASSERT_THAT(before_.to_read, SizeIs(1));  // the repeat starts no second read
  TakeOver({a});
  after_.Ask(a, ProfileRequest{}, request);
  EXPECT_THAT(after_.to_read, SizeIs(1));
}

TEST_F(TakeOverTest, AWaitingLeaseThatIsRequestedAgainIsQueuedOnce) {
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
    SCOPED_TRACE("while the job waits for its plan");
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
