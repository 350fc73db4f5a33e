// Tests rounds of planning that were running when their daemon ended. No row
// saves them; the next daemon must start them again where needed.
#include <memory>
#include <set>

#include "absl/time/time.h"
#include "daemon/state/core_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/core/replan_fixture.h"

namespace sluice::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LostRounds : public Replan {
 protected:
  // Returns a daemon that took over from the rows of `node` and reaches all
  // ranks.
  std::unique_ptr<CoreDriver> TakeOver() {
    auto next = std::make_unique<CoreDriver>(Node());
    const std::string rows = CoreRows().Everything(node.core);
    auto read = ReadCore({rows, {}}, next->core.Save());
    SLUICE_CHECK_OK(read.status());
    std::set<SessionId> reached;
    for (const auto& [id, session] : read->sessions) {
      if (session.is_rank()) reached.insert(id);
    }
    next->core.Load(*std::move(read));
    next->clock.Advance(node.clock.Now() - next->clock.Now());
    next->extents = node.extents;
    next->slots = node.slots;
    next->Run(
        [&](Core& core) { return core.TakeOver(reached, next->clock.Now()); });
    next->clock.Advance(absl::Milliseconds(200));
    next->Apply(next->core.Tick(next->clock.Now()));
    return next;
  }
  // Lets `of` read the profile of job a.
  void Read(CoreDriver& of) {
    of.Apply(of.core.ProfileRead(
        a, request, ProfileWithHash{ProfileOf(0, 0), "a", {}}, of.clock.Now()));
  }
  const RequestId request = RequestId(900);
};

// Guards against jobs that are not planned again until another job leaves.
TEST_F(LostRounds, ARoundForRunningJobsAloneIsStartedAgain) {
  a = Ask("a");
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  Solve({{1, MiB(8)}, {0.5, MiB(4)}});
  node.Die(b);
  Wait(absl::Milliseconds(200));
  ASSERT_THAT(node.to_solve, SizeIs(1));
  EXPECT_THAT(node.to_solve[0].profiles, SizeIs(1));
  const auto next = TakeOver();
  ASSERT_THAT(next->to_solve, SizeIs(1));
  EXPECT_THAT(next->to_solve[0].profiles, SizeIs(1));
  EXPECT_EQ(next->to_solve[0].round, PlanRoundId(4))
      << "the next daemon starts a new round";
  // The round is due only once: its answer ends it.
  next->Apply(next->core.PlanSolved(
      next->to_solve[0].round, PlanOf({{0.25, MiB(4)}}), next->clock.Now()));
  EXPECT_THAT(next->NoticesTo<PlanChangedNotice>(a), SizeIs(1));
  next->clock.Advance(absl::Seconds(1));
  next->Apply(next->core.Tick(next->clock.Now()));
  EXPECT_THAT(next->to_solve, SizeIs(1));
}

TEST_F(LostRounds, AJoiningJobIsToldToAskAgain) {
  a = Ask("a");
  Solve({{1, MiB(8)}});
  b = Ask("b", 1);
  const auto next = TakeOver();
  EXPECT_THAT(next->to_solve, IsEmpty());
  const auto told = next->NoticesTo<TakenOverNotice>(b);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].plan, PlanId());
}

// Guards against a job that waits for its plan forever: the profile is not
// saved, so the daemon has to read it from the rank's repeated request.
TEST_F(LostRounds, AProfileWithALostAnswerIsReadWhenItIsRepeated) {
  a = node.Attach("a", 0);
  node.Ask(a, ProfileRequest{}, request);
  Read(node);
  const auto next = TakeOver();
  EXPECT_FALSE(next->Ask(a, ProfileRequest{}, request));
  ASSERT_THAT(next->to_read, SizeIs(1));
  Read(*next);
  EXPECT_EQ(next->replies.count({a, request}), 1u);
  EXPECT_THAT(next->to_solve, SizeIs(1));
}

TEST_F(LostRounds, APlanIsSentAgainWithTheAnswerToItsProfile) {
  a = node.Attach("a", 0);
  node.Ask(a, ProfileRequest{}, request);
  Read(node);
  Solve({{1, MiB(8)}});
  const auto ready = node.NoticesTo<PlanReadyNotice>(a);
  ASSERT_THAT(ready, SizeIs(1));
  const auto next = TakeOver();
  EXPECT_TRUE(next->Ask(a, ProfileRequest{}, request));
  EXPECT_THAT(next->to_read, IsEmpty());
  const auto again = next->NoticesTo<PlanReadyNotice>(a);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].plan, ready[0].plan);
}

// Guards against refusing a lease that could be granted after a round.
TEST_F(LostRounds, ALeaseThatWaitsForARoundIsNotRefused) {
  a = Ask("a");
  Solve({{1, MiB(32)}});
  LeaseHost(a, MiB(32));
  const SessionId c = node.Attach("c", 0, 1, 1, 1);
  const RequestId request(900);
  EXPECT_FALSE(node.Ask(c, LeaseRequest{Host(0), MiB(16)}, request));
  b = Ask("b", 1);
  ASSERT_THAT(node.to_solve, SizeIs(1))
      << "one round plans b and makes room for c";
  const auto next = TakeOver();
  EXPECT_EQ(next->replies.count({c, request}), 0u);
  ASSERT_THAT(next->to_solve, SizeIs(1));
  EXPECT_THAT(next->to_solve[0].jobs, ElementsAre(0));
}

}  // namespace
}  // namespace sluice::daemon
