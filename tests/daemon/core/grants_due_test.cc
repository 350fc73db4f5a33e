// Tests copies with deadlines, through the daemon's own policy, in injected
// time. A unit is what the link carries in kT; comments write T for kT.
#include <cmath>
#include <map>
#include <vector>

#include "daemon/core/grants.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

constexpr double kDueRate = 1e9;
constexpr absl::Duration kDueTick = absl::Milliseconds(2);
constexpr absl::Duration kT = absl::Milliseconds(50);
constexpr int kRounds = 20;
constexpr uint64_t kForever = uint64_t{1} << 60;

uint64_t Units(double units) {
  return static_cast<uint64_t>(
      std::llround(units * kDueRate * absl::ToDoubleSeconds(kT)));
}

// Ranks that copy in one direction of one link. A rank uses all that it is
// granted, up to the end of its copies.
class DueLink {
 public:
  explicit DueLink(int ranks) : ranks_(ranks) {
    for (int slot = 0; slot < ranks; ++slot) {
      Rank& rank = ranks_[slot];
      rank.limit = policy.Attach(slot, 0).limit;
      // Attach grants the first window, which is wide for the first rank.
      rank.begin = rank.used = rank.end = rank.limit[kH2d];
    }
  }
  // Adds `bytes` to the rank's copies. Compute needs them `due` from now.
  void Copy(int slot, uint64_t bytes, absl::Duration due) {
    ranks_[slot].end += bytes;
    ranks_[slot].due = now_ + due;
    ranks_[slot].counted = false;
  }
  // If `told`, the policy learns the ranks' deadlines.
  void Run(absl::Duration time, bool told) {
    for (const absl::Duration end = now_ + time; now_ < end; now_ += kDueTick) {
      std::map<int, Directions> used;
      std::map<int, GrantPolicy::Needs> needs;
      for (int slot = 0; slot < static_cast<int>(ranks_.size()); ++slot) {
        Rank& rank = ranks_[slot];
        rank.used = std::max(rank.used, std::min(rank.limit[kH2d], rank.end));
        CountLate(rank);
        used[slot] = {rank.used, 0};
        if (told && rank.used < rank.end && rank.due < kNever) {
          needs[slot][kH2d] = {rank.end, rank.due - now_};
        }
      }
      for (const auto& [slot, claim] : lies) needs[slot][kH2d] = claim;
      for (const auto& [slot, grant] : policy.Refill(used, kDueTick, needs)) {
        ranks_[slot].limit = grant.limit;
      }
      policy.CheckInvariants();
    }
  }
  double copied(int slot) const {
    return static_cast<double>(ranks_[slot].used - ranks_[slot].begin);
  }
  int late(int slot) const { return ranks_[slot].late; }
  // Returns the late copies as the policy counted them.
  LateCopies counted(int slot) const { return policy.late().at(slot)[kH2d]; }

  GrantPolicy policy{{{"pcie0", kDueRate, kDueRate}}};
  std::map<int, GrantPolicy::Need> lies;  // false claims, always published

 private:
  static constexpr absl::Duration kNever = absl::InfiniteDuration();
  struct Rank {
    Directions limit = {0, 0};
    uint64_t begin = 0, used = 0, end = 0;
    absl::Duration due = kNever;
    bool counted = true;
    int late = 0;
  };
  void CountLate(Rank& rank) const {
    if (rank.counted || now_ <= rank.due) return;
    rank.counted = true;
    if (rank.used < rank.end) ++rank.late;
  }

  absl::Duration now_;
  std::vector<Rank> ranks_;
};

// Runs `link` for 2 s. Returns the bytes per second that the rank copied.
double RateOf(DueLink& link, int slot) {
  const double before = link.copied(slot);
  link.Run(absl::Seconds(2), /*told=*/true);
  return (link.copied(slot) - before) / 2;
}

// Every 5T rank 0 begins a copy of 1 unit due in 4T, and rank 1 a copy of 3
// units due in 3T.
void RunTwoRanks(DueLink& link, bool told) {
  link.Run(absl::Seconds(1), told);
  for (int i = 0; i < kRounds; ++i) {
    link.Copy(0, Units(1), 4 * kT);
    link.Copy(1, Units(3), 3 * kT);
    link.Run(5 * kT, told);
  }
}

TEST(GrantsDue, WithoutDeadlinesOneRanksCopiesAreLate) {
  DueLink link(2);
  RunTwoRanks(link, /*told=*/false);
  EXPECT_EQ(link.late(0), 0);
  EXPECT_EQ(link.late(1), kRounds);
}

TEST(GrantsDue, EarliestDeadlineFirstLeavesNoCopyLate) {
  DueLink link(2);
  RunTwoRanks(link, /*told=*/true);
  EXPECT_EQ(link.late(0), 0);
  EXPECT_EQ(link.late(1), 0);
  EXPECT_EQ(link.counted(0), LateCopies());
  EXPECT_EQ(link.counted(1), LateCopies());
}

// Half of the link carries 40 units in 80T.
TEST(GrantsDue, ACopyInTimeByItsFairShareBorrowsNothing) {
  DueLink link(2);
  link.Copy(0, kForever, absl::InfiniteDuration());
  link.Copy(1, Units(40), 84 * kT);
  link.Run(20 * kT, /*told=*/true);
  EXPECT_NEAR(link.copied(0), static_cast<double>(Units(10)),
              static_cast<double>(Units(0.5)));
}

// Each rank has 3 units due at 3T. The link carries all 6 units by 6T.
TEST(GrantsDue, LateCopiesAndTheirDelaysAreCounted) {
  DueLink link(2);
  for (int i = 0; i < kRounds; ++i) {
    for (int slot : {0, 1}) link.Copy(slot, Units(3), 3 * kT);
    link.Run(8 * kT, /*told=*/true);
  }
  EXPECT_GE(link.late(0) + link.late(1), kRounds);
  double seconds = 0;
  for (int slot : {0, 1}) {
    EXPECT_EQ(link.counted(slot).copies, link.late(slot));
    seconds += link.counted(slot).seconds;
  }
  // A copy is at most 3T late, and in each round one is at least 2T late.
  EXPECT_LE(seconds, 2 * kRounds * absl::ToDoubleSeconds(3 * kT));
  EXPECT_GE(seconds, kRounds * absl::ToDoubleSeconds(2 * kT));
  EXPECT_EQ(link.policy.late().at(0)[kD2h], LateCopies());
}

// Guards against a user that gets ahead of others with each of its many ranks.
TEST(GrantsDue, RanksOfOneUserGetAheadNoFurtherThanOneRank) {
  GrantPolicy policy({{"pcie0", kDueRate, kDueRate}});
  constexpr int kRanks = 21;
  std::map<int, Directions> used;
  std::map<int, GrantPolicy::Needs> late;
  const auto refill = [&] {
    for (const auto& [slot, grant] : policy.Refill(used, kDueTick, late)) {
      used[slot] = grant.limit;
    }
  };
  for (int slot = 0; slot < kRanks; ++slot) {
    const uint32_t uid = slot == 0 ? 1 : 2;
    used[slot] = policy.Attach(slot, 0, {.who = {uid, ""}}).limit;
    if (slot > 0) late[slot][kH2d] = {kForever, -kT};
  }
  const uint64_t before = used[0][kH2d];
  for (absl::Duration t; t < absl::Seconds(2); t += kDueTick) refill();
  // The even share is 1 s of link time. The other user may be ahead by 0.2 s.
  EXPECT_GE(static_cast<double>(used[0][kH2d] - before), 0.75 * kDueRate);
}

// The deadline lies far in the past.
TEST(GrantsDue, ADelayCountsOnlyFromWhenTheCopyWasSeenLate) {
  DueLink link(1);
  link.lies[0] = {uint64_t{1} << 50, absl::Seconds(-1e9)};
  link.Run(absl::Seconds(1), /*told=*/false);
  EXPECT_EQ(link.counted(0).copies, 1u);
  EXPECT_NEAR(link.counted(0).seconds, 1, 0.01);
}

TEST(GrantsDue, ALinkOfUnknownSpeedHasNoLateCopies) {
  GrantPolicy policy({{"pcie0", 0, 0}});
  policy.Attach(0, 0);
  policy.Refill({{0, {0, 0}}}, kDueTick,
                {{0, {{{uint64_t{1} << 60, -kT}, {}}}}});
  EXPECT_EQ(policy.late().at(0), LateDirections());
}

// Three ranks copy all the time without deadlines. A fourth rank copies
// in bursts that take 0.15 of the link, less than its fair share.
void RunAmongHungryOnes(DueLink& link, bool told) {
  for (int slot : {1, 2, 3}) {
    link.Copy(slot, kForever, absl::InfiniteDuration());
  }
  link.Run(absl::Seconds(1), told);
  for (int i = 0; i < kRounds; ++i) {
    link.Copy(0, Units(1.5), 1.5 * kT);
    link.Run(10 * kT, told);
  }
}

TEST(GrantsDue, ABurstAmongBusyRanksIsInTimeIfItsDeadlineIsKnown) {
  for (const bool told : {false, true}) {
    DueLink link(4);
    RunAmongHungryOnes(link, told);
    EXPECT_EQ(link.late(0), told ? 0 : kRounds);
  }
}

TEST(GrantsDue, BandwidthLentToABurstIsReturnedToOtherRanks) {
  for (const bool told : {false, true}) {
    DueLink link(4);
    RunAmongHungryOnes(link, told);
    // The link ran for 11 s. The bursts took 1.5 units each half second, and
    // the three other ranks shared what was left evenly.
    const double rest =
        (11 * kDueRate - kRounds * static_cast<double>(Units(1.5))) / 3;
    for (int slot : {1, 2, 3}) {
      EXPECT_NEAR(link.copied(slot), rest, 0.01 * rest) << told << slot;
    }
  }
}

// A rank may be ahead of the other by a fixed amount, once, whatever deadline
// it reports.
TEST(GrantsDue, AFalseDeadlineGivesBandwidthEarlierButNotMore) {
  for (const absl::Duration due :
       {absl::ZeroDuration(), -absl::InfiniteDuration(), absl::Seconds(-1e9),
        absl::Milliseconds(30)}) {
    DueLink link(2);
    for (int slot : {0, 1}) {
      link.Copy(slot, kForever, absl::InfiniteDuration());
    }
    link.lies[1] = {UINT64_MAX, due};
    link.Run(absl::Seconds(1), /*told=*/true);
    // The rank may be ahead by 200 ms of link time, and by a window.
    EXPECT_LE(link.copied(1) - link.copied(0), 0.23 * kDueRate);
    EXPECT_NEAR(RateOf(link, 0), kDueRate / 2, kDueRate / 100);
  }
}

TEST(GrantsDue, AFalseDeadlineTakesNothingOfAPromise) {
  DueLink link(3);
  for (int slot : {0, 1, 2}) {
    link.Copy(slot, kForever, absl::InfiniteDuration());
    link.lies[slot] = {UINT64_MAX, absl::ZeroDuration()};
  }
  link.lies.erase(0);
  link.policy.Promise(0, {0.7 * kDueRate, 0});
  link.Run(absl::Seconds(1), /*told=*/true);
  EXPECT_GE(RateOf(link, 0), 0.699 * kDueRate);
}

// A plan's burst above its promise borrows only bandwidth that is not promised.
TEST(GrantsDue, ABurstAboveItsPromiseIsInTimeAndOtherPromisesAreKept) {
  for (const bool told : {false, true}) {
    DueLink link(3);
    link.policy.Promise(0, {0.3 * kDueRate, 0});
    link.policy.Promise(1, {0.3 * kDueRate, 0});
    for (int slot : {1, 2}) {
      link.Copy(slot, kForever, absl::InfiniteDuration());
    }
    link.Run(absl::Seconds(1), told);
    const double before = link.copied(1);
    for (int i = 0; i < kRounds; ++i) {
      link.Copy(0, Units(2), 3.2 * kT);
      link.Run(10 * kT, told);
    }
    EXPECT_EQ(link.late(0), told ? 0 : kRounds);
    EXPECT_GE(link.copied(1) - before,
              0.299 * kDueRate * kRounds * absl::ToDoubleSeconds(10 * kT));
  }
}

}  // namespace
}  // namespace sluice::daemon
