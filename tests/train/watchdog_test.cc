// Tests which rank is reported as late, from reads of the ranks' pages.
#include "client/train/watch/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two ranks in step 12 that take part in the same collectives.
class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() {
    for (int rank : {0, 1}) {
      WatchedRank r;
      r.rank = rank;
      r.pid = 100 + rank;
      r.sample.phase = RankPhase::kStep;
      r.sample.step = 12;
      r.sample.place = {2, 4, true};
      r.sample.layers = 8;
      r.sample.chunks = 64;
      r.sample.segment = "post.backward.full";
      ranks_.push_back(r);
    }
  }

  void Waits(int rank, uint64_t collectives) {
    ranks_[rank].sample.waits_in = "all-to-all";
    ranks_[rank].sample.collectives = collectives;
    ++ranks_[rank].sample.events;
  }

  // Looks twice a second, for `seconds`. Returns all messages.
  std::vector<std::string> Pass(double seconds) {
    std::vector<std::string> said;
    for (int i = 0; i < 2 * seconds; ++i) {
      now_s_ += 0.5;
      const WatchVerdict verdict = dog_.Look(ranks_, now_s_);
      said.insert(said.end(), verdict.notes.begin(), verdict.notes.end());
      if (end_.empty()) end_ = verdict.end;
    }
    return said;
  }

  Watchdog dog_{{30, 100}, false};
  std::vector<WatchedRank> ranks_;
  double now_s_ = 1000;
  std::string end_;
};

TEST_F(WatchdogTest, AWaitingRankIsNotLateButTheRankThatItWaitsForIs) {
  Waits(0, 5);
  EXPECT_THAT(Pass(29), IsEmpty());
  EXPECT_THAT(Pass(2), ElementsAre(AllOf(
                           HasSubstr("rank 1 is late: nothing new for 30 s"),
                           HasSubstr("step 12, layer 3 of 8, chunk 5 of 64, "
                                     "backward, in post.backward.full"),
                           HasSubstr("ended in 70 s"))));
  EXPECT_THAT(Pass(27), IsEmpty())
      << "the rank is reported again after twice the time only";
  ++ranks_[1].sample.events;
  EXPECT_THAT(Pass(1), ElementsAre(HasSubstr("rank 1 goes on after 58 s")));
  EXPECT_EQ(end_, "");
  Waits(0, 6);
  EXPECT_THAT(Pass(61),
              ElementsAre(HasSubstr("for 30 s"), HasSubstr("for 60 s")))
      << "the rank is reported again after twice the time";
}

// Rank 1 waits for its GPU, which waits for rank 0's GPU.
TEST_F(WatchdogTest, ARankThatHasIssuedMoreCollectivesIsNotLate) {
  ranks_[1].sample.collectives = 5;
  ranks_[0].sample.collectives = 4;
  EXPECT_THAT(Pass(31), ElementsAre(HasSubstr("rank 0 is late")));
  Pass(71);
  EXPECT_THAT(end_, HasSubstr("rank 0 is late"));
}

TEST_F(WatchdogTest, AStoppedRankIsLateHoweverManyCollectivesItHasIssued) {
  ranks_[1].sample.collectives = 5;
  ranks_[1].stopped = true;
  EXPECT_THAT(Pass(31), ElementsAre(HasSubstr("rank 1 is stopped"),
                                    HasSubstr("rank 1 is late")));
}

TEST_F(WatchdogTest, ProgressOfAnyKindIsNotLate) {
  for (int i = 0; i < 20; ++i) {
    ++ranks_[0].sample.events;
    ++ranks_[1].sample.events;
    EXPECT_THAT(Pass(20), IsEmpty());
  }
}

TEST_F(WatchdogTest, TheRunEndsAfterTheSecondLimitWithTheRankNamed) {
  Waits(0, 5);
  Pass(99);
  EXPECT_EQ(end_, "");
  Pass(3);
  EXPECT_THAT(
      end_, AllOf(HasSubstr("rank 1 is late"), HasSubstr("post.backward.full"),
                  HasSubstr("--end-after")));
}

TEST_F(WatchdogTest, AStoppedRankIsNamedWithinSecondsEvenInsideACollective) {
  Waits(0, 5);
  Waits(1, 5);
  ranks_[1].stopped = true;
  EXPECT_THAT(Pass(3), ElementsAre(AllOf(HasSubstr("rank 1 is stopped"),
                                         HasSubstr("kill -CONT 101"))));
  ranks_[1].stopped = false;
  ++ranks_[1].sample.events;
  EXPECT_THAT(Pass(1), ElementsAre(HasSubstr("rank 1 goes on after 3")));
}

TEST_F(WatchdogTest, IfAllRanksWaitTheNetworkIsNamed) {
  Waits(0, 5);
  Waits(1, 5);
  EXPECT_THAT(Pass(31), ElementsAre(HasSubstr("network")));
}

TEST_F(WatchdogTest, ASetUpAndASavedCheckpointMayTakeLong) {
  for (const RankPhase phase :
       {RankPhase::kStarting, RankPhase::kPlanning, RankPhase::kSaving}) {
    ranks_[0].sample.phase = ranks_[1].sample.phase = phase;
    EXPECT_THAT(Pass(200), IsEmpty());
  }
  EXPECT_EQ(end_, "");
}

TEST_F(WatchdogTest, ASuspendedNodeMakesNoRankLate) {
  Pass(1);
  now_s_ += 10000;
  EXPECT_THAT(Pass(2), IsEmpty());
  EXPECT_EQ(end_, "");
}

TEST_F(WatchdogTest, ARankThatHasEndedIsNotLate) {
  ranks_[1].ended = true;
  Waits(0, 5);
  EXPECT_THAT(Pass(200), IsEmpty());
}

TEST(WatchLimits, FollowTheStepAndAreNeverShort) {
  EXPECT_EQ(LateAfter({}, 0), 30);
  EXPECT_EQ(LateAfter({}, 100), 200);
  EXPECT_EQ(EndAfter({}, 1), 600);
  EXPECT_EQ(EndAfter({}, 100), 2000);
  EXPECT_EQ(EndAfter({}, 0), 1800);
  EXPECT_EQ(LateAfter({5, 7}, 100), 5);
  EXPECT_EQ(EndAfter({5, 7}, 100), 7);
}

TEST(WatchLimits, AZeroLimitIsNeverReached) {
  Watchdog dog({0, 0}, true);
  std::vector<WatchedRank> ranks(1);
  ranks[0].sample.phase = RankPhase::kStep;
  for (int i = 0; i < 10000; ++i) {
    const WatchVerdict verdict = dog.Look(ranks, i);
    EXPECT_THAT(verdict.notes, IsEmpty());
    EXPECT_EQ(verdict.end, "");
  }
}

}  // namespace
}  // namespace sluice::train
