// Tests how the daemon's grants share links, in injected time.
#include "daemon/core/grants.h"

#include <random>

#include "gtest/gtest.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

constexpr double kRate = 1e9;
constexpr absl::Duration kTick = absl::Milliseconds(2);

// Ranks on links. A rank uses its grants at once, or at a limited rate.
class Link {
 public:
  explicit Link(std::vector<LinkSpeed> links = {{"pcie0", kRate, kRate}})
      : policy(std::move(links)) {}

  void Attach(int slot, double promised = 0, int link = 0,
              const GrantSharer& sharer = {}) {
    limit[slot] = policy.Attach(slot, link, sharer).limit;
    if (promised > 0) policy.Promise(slot, {promised, promised});
    used[slot] = {0, 0};
  }
  // `hunger[slot]` is the rate in bytes per second that a rank would use; a
  // rank without an entry uses all it gets.
  void Run(absl::Duration time, const std::map<int, double>& hunger = {},
           absl::Duration tick = kTick) {
    for (absl::Duration t; t < time; t += tick) {
      for (auto& [slot, now] : used) {
        const auto rate = hunger.find(slot);
        for (int d : {kH2d, kD2h}) {
          const uint64_t more =
              rate == hunger.end()
                  ? UINT64_MAX / 2
                  : static_cast<uint64_t>(rate->second *
                                          absl::ToDoubleSeconds(tick));
          now[d] = std::min(limit[slot][d], now[d] + more);
        }
      }
      if (passes && policy.IsSettled(used)) {
        policy.Pass(tick);
        ++passed;
        continue;
      }
      for (const auto& [slot, grant] : policy.Refill(used, tick)) {
        limit[slot] = grant.limit;
        rate[slot] = grant.rate;
      }
      policy.CheckInvariants();
    }
  }
  double Rate(int slot, const std::map<int, Directions>& before,
              absl::Duration time) const {
    return static_cast<double>(used.at(slot)[kH2d] - before.at(slot)[kH2d]) /
           absl::ToDoubleSeconds(time);
  }

  GrantPolicy policy;
  std::map<int, Directions> limit, used, rate;
  bool passes = false;  // whether to skip refills that change nothing
  int passed = 0;
};

TEST(Grants, ARankAloneGetsTheWholeLink) {
  Link link;
  link.Attach(0);
  link.Run(absl::Seconds(1));  // uses up what Attach granted
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_NEAR(link.Rate(0, before, absl::Seconds(2)), kRate, kRate / 100);
}

TEST(Grants, BusyRanksShareEvenlyAndUseTheWholeLink) {
  Link link;
  for (int slot : {0, 1, 2, 3}) link.Attach(slot);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  double sum = 0;
  for (int slot : {0, 1, 2, 3}) {
    const double rate = link.Rate(slot, before, absl::Seconds(2));
    EXPECT_NEAR(rate, kRate / 4, kRate / 100) << slot;
    sum += rate;
  }
  EXPECT_GE(sum, 0.97 * kRate);
}

TEST(Grants, BusyRanksShareByWeight) {
  Link link;
  link.Attach(0, 0, 0, {.who = {1, ""}, .weight = 3});
  link.Attach(1, 0, 0, {.who = {2, ""}});
  link.Run(absl::Seconds(2));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_NEAR(link.Rate(0, before, absl::Seconds(2)), 0.75 * kRate, kRate / 50);
  EXPECT_NEAR(link.Rate(1, before, absl::Seconds(2)), 0.25 * kRate, kRate / 50);
  // The policy tells each rank its share as its rate.
  EXPECT_GE(link.rate[0][kH2d], 0.74 * kRate);
}

// Guards against a user that takes more of a link by having many ranks.
TEST(Grants, ManyRanksOfOneUserShareThatUsersPart) {
  Link link;
  link.Attach(0, 0, 0, {.who = {1, ""}});
  for (int slot = 1; slot <= 20; ++slot) {
    link.Attach(slot, 0, 0, {.who = {2, ""}});
  }
  link.Run(absl::Seconds(2));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_NEAR(link.Rate(0, before, absl::Seconds(2)), kRate / 2, kRate / 50);
  EXPECT_NEAR(link.Rate(7, before, absl::Seconds(2)), kRate / 40, kRate / 200);
  EXPECT_GE(link.rate[0][kH2d], 0.49 * kRate);
  // Ranks that copy nothing leave their part to the other ranks of their user.
  std::map<int, double> resting;
  for (int slot = 2; slot <= 20; ++slot) resting[slot] = 0;
  link.Run(absl::Seconds(2), resting);
  const auto then = link.used;
  link.Run(absl::Seconds(2), resting);
  EXPECT_NEAR(link.Rate(1, then, absl::Seconds(2)), kRate / 2, kRate / 50);
}

// One user has ranks on both GPUs behind a switch, another user on one GPU.
TEST(Grants, AUserHasItsPartOfEachLinkOfAPath) {
  Link link({{"pcie0", kRate, kRate, "switch"},
             {"pcie1", kRate, kRate, "switch"},
             {"switch", 2 * kRate, 2 * kRate}});
  for (int slot = 0; slot < 8; ++slot) {
    link.Attach(slot, 0, slot % 2, {.who = {2, ""}});
  }
  link.Attach(8, 0, 0, {.who = {1, ""}});
  link.Run(absl::Seconds(2));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_GE(link.Rate(8, before, absl::Seconds(2)), 0.49 * kRate);
  double pcie1 = 0;
  for (int slot = 1; slot < 8; slot += 2) {
    pcie1 += link.Rate(slot, before, absl::Seconds(2));
  }
  EXPECT_NEAR(pcie1, kRate, kRate / 50);
}

// Guards against sessions that hold no memory but claim to copy.
TEST(Grants, RanksWithoutMemoryGetOnlyUnusedBandwidth) {
  Link link;
  const GrantSharer idle = {.who = {2, ""}, .holds = false};
  link.Attach(0, 0, 0, {.who = {1, ""}});
  for (int slot = 1; slot <= 20; ++slot) {
    link.Attach(slot, slot == 1 ? kRate / 2 : 0, 0, idle);
    EXPECT_EQ(link.limit[slot], (Directions{0, 0}));
  }
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_GE(link.Rate(0, before, absl::Seconds(2)), 0.99 * kRate);
  // Ranks without memory copy when no rank with memory does.
  link.Run(absl::Seconds(1), {{0, 0}});
  const auto then = link.used;
  link.Run(absl::Seconds(2), {{0, 0}});
  EXPECT_NEAR(link.Rate(2, then, absl::Seconds(2)), kRate / 20, kRate / 100);
  // Rank 1 now holds memory, so it gets its promise of half of the link.
  link.policy.Hold(1, true);
  link.Run(absl::Seconds(1));
  const auto held = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_NEAR(link.Rate(1, held, absl::Seconds(2)), kRate / 2, kRate / 50);
  link.policy.Hold(1, false);
  link.Run(absl::Seconds(1));
  const auto freed = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_LE(link.Rate(1, freed, absl::Seconds(2)), 0.01 * kRate);
}

TEST(Grants, UnusedBandwidthGoesToOtherRanks) {
  Link link;
  link.Attach(0);
  link.Attach(1);
  // Rank 0 attached alone. Its wide first window is used up within 3 s.
  link.Run(absl::Seconds(3), {{0, 0.1 * kRate}});
  const auto before = link.used;
  link.Run(absl::Seconds(2), {{0, 0.1 * kRate}});
  EXPECT_NEAR(link.Rate(0, before, absl::Seconds(2)), 0.1 * kRate, kRate / 100);
  EXPECT_NEAR(link.Rate(1, before, absl::Seconds(2)), 0.9 * kRate, kRate / 50);
}

TEST(Grants, APromisedRateIsKeptAmongBusyRanks) {
  Link link;
  link.Attach(0, /*promised=*/0.6 * kRate);
  for (int slot : {1, 2, 3}) link.Attach(slot);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_GE(link.Rate(0, before, absl::Seconds(2)), 0.6 * kRate);
  for (int slot : {1, 2, 3}) {
    EXPECT_GT(link.Rate(slot, before, absl::Seconds(2)), 0.05 * kRate);
  }
}

// Three ranks copy all the time, and a fourth has a plan that needs 0.7 of the
// link to the GPU. Fair shares would make the fourth rank late.
TEST(Grants, APromisedPlansRateIsKeptAmongBusyRanks) {
  Link link;
  for (int slot : {0, 1, 2, 3}) link.Attach(slot);
  const auto rate = [&] {
    link.Run(absl::Seconds(1));
    const auto before = link.used;
    link.Run(absl::Seconds(2));
    return link.Rate(0, before, absl::Seconds(2));
  };
  EXPECT_NEAR(rate(), kRate / 4, kRate / 100);
  link.policy.Promise(0, {0.7 * kRate, 0});
  const auto before = link.used;
  EXPECT_GE(rate(), 0.7 * kRate);
  // There is no promise for the other direction.
  EXPECT_NEAR(static_cast<double>(link.used[0][kD2h] - before.at(0)[kD2h]),
              3 * kRate / 4, kRate / 10);
  link.policy.Promise(0, {0.5 * kRate, 0});
  EXPECT_NEAR(rate(), 0.5 * kRate, kRate / 50);
  link.policy.Promise(0, {0, 0});
  EXPECT_NEAR(rate(), kRate / 4, kRate / 100);
}

// An ended rank's promise counts until the link has carried the bytes granted
// to that rank.
TEST(Grants, APromiseIsKeptAfterAnotherOneHasEnded) {
  Link link;
  for (int slot : {1, 2}) link.Attach(slot);
  link.Attach(0, /*promised=*/0.9 * kRate);
  link.Run(absl::Milliseconds(10));
  link.policy.Detach(0);
  link.used.erase(0);
  link.Attach(3, /*promised=*/0.9 * kRate);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_GE(link.Rate(3, before, absl::Seconds(2)), 0.899 * kRate);
}

// On a busy machine the refilling thread runs late.
TEST(Grants, APromiseIsKeptThoughRefillsAreLate) {
  Link link;
  link.Attach(0, /*promised=*/0.7 * kRate);
  for (int slot : {1, 2, 3}) link.Attach(slot);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  absl::Duration took;
  for (int i = 0; took < absl::Seconds(2); ++i) {
    const absl::Duration tick = absl::Microseconds(2100 + 1900 * (i % 5));
    link.Run(tick, {}, tick);
    took += tick;
  }
  EXPECT_GE(link.Rate(0, before, took), 0.69 * kRate);
}

TEST(Grants, DirectionsAndLinksAreIndependent) {
  Link link({{"pcie0", kRate, kRate / 2}, {"pcie1", kRate, kRate}});
  link.Attach(0, 0, 0);
  link.Attach(1, 0, 1);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_NEAR(link.Rate(0, before, absl::Seconds(2)), kRate, kRate / 100);
  EXPECT_NEAR(link.Rate(1, before, absl::Seconds(2)), kRate, kRate / 100);
  EXPECT_NEAR(static_cast<double>(link.used[0][kD2h] - before.at(0)[kD2h]),
              kRate, kRate / 100);  // half the rate for two seconds
}

// Two GPUs with links of 0.8 kRate are behind a switch of kRate.
TEST(Grants, RanksBehindOneSwitchShareIt) {
  Link link({{"pcie0", 0.8 * kRate, 0.8 * kRate, "switch"},
             {"pcie1", 0.8 * kRate, 0.8 * kRate, "switch"},
             {"switch", kRate, kRate}});
  link.Attach(0, 0, 0);
  link.Attach(1, 0, 1);
  link.Run(absl::Seconds(1));
  auto before = link.used;
  link.Run(absl::Seconds(2));
  for (int slot : {0, 1}) {
    EXPECT_NEAR(link.Rate(slot, before, absl::Seconds(2)), kRate / 2,
                kRate / 100);
    EXPECT_NEAR(static_cast<double>(link.rate[slot][kH2d]), kRate / 2,
                kRate / 50);
  }
  // Rank 1 gets the bandwidth that rank 0 leaves, up to the speed of rank 1's
  // link.
  link.Run(absl::Seconds(1), {{0, 0.1 * kRate}});
  before = link.used;
  link.Run(absl::Seconds(2), {{0, 0.1 * kRate}});
  EXPECT_NEAR(link.Rate(1, before, absl::Seconds(2)), 0.8 * kRate, kRate / 50);
}

// Two GPUs with kRate in each direction use memory that carries kRate in total.
TEST(Grants, PrefetchesGoBeforeOffloadsOnASharedMemoryLink) {
  Link link({{"pcie0", kRate, kRate, "memory"},
             {"pcie1", kRate, kRate, "memory"},
             {"memory", 0, 0, "", kRate}});
  link.Attach(0, 0, 0);
  link.Attach(1, 0, 1);
  link.Run(absl::Seconds(1));
  auto before = link.used;
  link.Run(absl::Seconds(2));
  for (int slot : {0, 1}) {
    EXPECT_NEAR(
        static_cast<double>(link.used[slot][kH2d] - before.at(slot)[kH2d]),
        kRate * 8 / 9, kRate / 50)
        << slot;
    EXPECT_NEAR(
        static_cast<double>(link.used[slot][kD2h] - before.at(slot)[kD2h]),
        kRate / 9, kRate / 50)
        << slot;
  }
  // Offloads get the bandwidth that prefetches leave.
  for (int i = 0; i < 1500; ++i) {
    if (i == 500) before = link.used;
    for (int slot : {0, 1}) link.used[slot][kD2h] = link.limit[slot][kD2h];
    link.Run(kTick, {{0, 0}, {1, 0}});
  }
  EXPECT_NEAR(static_cast<double>(link.used[0][kD2h] - before.at(0)[kD2h]),
              kRate, kRate / 50);
}

// On a link with separate directions, a rank that is alone has a wide window.
TEST(Grants, AnOffloadAloneOnASharedMemoryLinkHasANarrowWindow) {
  Link alone({{"pcie0", kRate, kRate}});
  Link both({{"pcie0", kRate, kRate, "", kRate}});
  alone.Attach(0);
  both.Attach(0);
  EXPECT_EQ(alone.limit[0][kD2h], kRate / 4);
  EXPECT_EQ(both.limit[0][kD2h], kRate / 50);
  both.Run(absl::Milliseconds(500), {{0, 0}});
  EXPECT_EQ(both.rate[0], (Directions{500'000'000, 500'000'000}));
}

TEST(Grants, APromiseIsKeptInBothDirectionsOfASharedMemoryLink) {
  Link link({{"memory", 0, 0, "", kRate}});
  link.Attach(0, /*promised=*/0.3 * kRate);
  for (int slot : {1, 2, 3}) link.Attach(slot);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  for (int d : {kH2d, kD2h}) {
    EXPECT_GE(static_cast<double>(link.used[0][d] - before.at(0)[d]),
              0.599 * kRate)
        << d;
  }
}

TEST(Grants, FalseReportsHurtOnlyTheirOwnRank) {
  Link link;
  link.Attach(0);
  link.Attach(1);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  // Rank 1 claims by turns to have used everything and nothing.
  for (int i = 0; i < 500; ++i) {
    link.used[1] =
        i % 2 == 0 ? Directions{UINT64_MAX, UINT64_MAX} : Directions{0, 0};
    link.Run(kTick, {{1, 0}});
  }
  EXPECT_GE(static_cast<double>(link.used[0][kH2d] - before.at(0)[kH2d]),
            0.49 * kRate);
}

// Guards against a false report of use that takes the whole link.
TEST(Grants, ARankWithFalseReportsGetsNoMoreThanABusyRank) {
  for (const double promised : {0.0, 0.5 * kRate}) {
    Link link;
    link.Attach(0);
    link.Attach(1, promised);
    link.Run(absl::Seconds(1));
    const auto before = link.used;
    for (int i = 0; i < 1000; ++i) {
      link.used[1] = {UINT64_MAX, UINT64_MAX};
      link.Run(kTick, {{1, 0}});
    }
    EXPECT_GE(link.Rate(0, before, absl::Seconds(2)), 0.49 * kRate) << promised;
  }
}

TEST(Grants, AReportedUseIsCappedByTheLinksSpeed) {
  Link link;
  link.Attach(0);
  link.Run(absl::Milliseconds(100), {{0, 0}});
  link.used[0] = {UINT64_MAX, UINT64_MAX};
  const auto before = link.policy.used().at(0)[kH2d];
  link.Run(kTick, {{0, 0}});
  EXPECT_LE(link.policy.used().at(0)[kH2d] - before,
            GrantPolicy::kOneCopy + static_cast<uint64_t>(kRate / 500));
}

TEST(Grants, APromiseIsPartOfTheEvenShareNotAddedToIt) {
  Link link;
  link.Attach(0, /*promised=*/0.4 * kRate);
  link.Attach(1);
  link.Run(absl::Seconds(1));
  const auto before = link.used;
  link.Run(absl::Seconds(2));
  EXPECT_NEAR(link.Rate(0, before, absl::Seconds(2)), kRate / 2, kRate / 50);
  EXPECT_NEAR(link.Rate(1, before, absl::Seconds(2)), kRate / 2, kRate / 50);
}

TEST(Grants, AnIdleRankIsToldTheRateThatItCouldCopyAt) {
  Link link;
  link.Attach(0);
  link.Attach(1);
  link.Run(absl::Seconds(2), {{0, 0}});
  EXPECT_NEAR(static_cast<double>(link.rate[0][kH2d]), kRate / 2, kRate / 50);
  EXPECT_NEAR(static_cast<double>(link.rate[1][kH2d]), kRate, kRate / 50);
}

TEST(Grants, LinksWithoutASpeedDoNotLimitCopies) {
  Link link({{"nvlink", 0, 0}});
  link.Attach(0, 0, 0);
  link.Attach(1, 0, -1);
  EXPECT_GT(link.limit[0][kH2d], uint64_t{1} << 40);
  EXPECT_GT(link.limit[1][kD2h], uint64_t{1} << 40);
  link.Run(absl::Milliseconds(10));
  EXPECT_GT(link.limit[0][kH2d], link.used[0][kH2d] + (uint64_t{1} << 40));
}

TEST(Grants, LimitsNeverDecrease) {
  Link link;
  link.Attach(0);
  const auto first = link.limit[0];
  link.Attach(1);  // shrinks both ranks' windows
  link.Run(absl::Milliseconds(20), {{0, 0}, {1, 0}});
  EXPECT_GE(link.limit[0][kH2d], first[kH2d]);
}

// Ranks attach and detach, copy now and then and mostly compute, some with
// promises. A policy that skips refills must grant the same.
TEST(Grants, ASkippedRefillWouldHaveChangedNothing) {
  const std::vector<LinkSpeed> links = {{"pcie0", kRate / 3, 0, "switch"},
                                        {"switch", kRate / 2, kRate / 2}};
  Link all(links), some(links);
  some.passes = true;
  std::mt19937 random(5);
  const auto pick = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  int runs = 0;
  for (int i = 0; i < 1'000; ++i) {
    const int slot = pick(4), act = pick(5), more = pick(3), link = pick(2);
    const bool known = all.used.contains(slot);
    std::map<int, double> hunger = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
    if (act > 1) hunger[slot] = more * kRate / 5;
    const absl::Duration tick = absl::Microseconds(500 + pick(3000));
    const absl::Duration time = absl::Milliseconds(pick(40));
    for (Link* each : {&all, &some}) {
      if (act == 0 && known) {
        each->policy.Detach(slot);
        each->used.erase(slot);
      } else if (act == 0) {
        each->Attach(slot, more * kRate / 30, link);
      } else if (act == 1 && known) {
        each->policy.Promise(slot, {more * kRate / 20, more * kRate / 70});
      }
      each->Run(time, hunger, tick);
      // All ranks compute.
      if (act < 4)
        each->Run(absl::Seconds(2), {{0, 0}, {1, 0}, {2, 0}, {3, 0}}, tick * 4);
    }
    runs += all.used.empty() ? 0 : 1;
    ASSERT_EQ(all.limit, some.limit) << i;
    ASSERT_EQ(all.rate, some.rate) << i;
  }
  EXPECT_GT(runs, 500);
  EXPECT_GT(some.passed, 50'000);
}

// Ranks attach and detach behind a switch of an odd speed, busy or not, with
// and without a promise, with refills at odd times. The policy's invariants
// must hold, and only first windows may exceed the switch's capacity.
TEST(Grants, RandomLoadIsNeverGrantedMoreThanTheSwitchCarries) {
  constexpr double kSwitch = 1.234567e9 / 3;
  std::mt19937 random(3);
  const auto pick = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  Link link({{"pcie0", kRate / 3, kRate / 7, "switch"},
             {"pcie1", kRate / 3, 0, "switch"},
             {"switch", kSwitch, kSwitch}});
  double seconds = 0, gifts = 0, granted = 0;
  std::map<int, double> hunger;
  for (int i = 0; i < 20'000; ++i) {
    const int slot = pick(8);
    if (pick(50) == 0) {
      if (link.used.erase(slot) > 0) {
        link.policy.Detach(slot);
      } else {
        link.Attach(slot, pick(2) * kSwitch / 10, pick(2));
        gifts += static_cast<double>(link.limit[slot][kH2d]);
      }
    }
    if (pick(60) == 0 && link.used.contains(slot)) {
      link.policy.Promise(slot, {pick(3) * kSwitch / 20, pick(3) * kRate / 70});
    }
    hunger[pick(8)] = pick(3) * kSwitch / 5;
    const auto before =
        link.used.empty() ? std::map<int, Directions>() : link.limit;
    const absl::Duration tick = absl::Microseconds(500 + pick(3000));
    link.Run(tick, hunger, tick);
    seconds += absl::ToDoubleSeconds(tick);
    for (const auto& [id, use] : link.used) {
      granted +=
          static_cast<double>(link.limit[id][kH2d] - before.at(id)[kH2d]);
    }
  }
  EXPECT_LE(granted, kSwitch * seconds + 1);
  EXPECT_GT(granted + gifts, 0.5 * kSwitch * seconds);
}

TEST(Grants, ALoweredPromiseMakesRoomForOthers) {
  Link link;
  link.Attach(0, 0.8 * kRate);
  for (int slot = 1; slot < 6; ++slot) link.Attach(slot);
  const auto rate = [&](int slot) {
    link.Run(absl::Seconds(1));
    const auto before = link.used;
    link.Run(absl::Seconds(1));
    return link.Rate(slot, before, absl::Seconds(1));
  };
  EXPECT_GT(rate(0), 0.79 * kRate);
  link.policy.Promise(0, {0.2 * kRate, 0.2 * kRate});
  link.policy.Promise(1, {0.6 * kRate, 0.6 * kRate});
  EXPECT_GT(rate(1), 0.59 * kRate);
  EXPECT_LT(rate(0), 0.25 * kRate);
  link.policy.Promise(1, {0, 0});
  EXPECT_LT(rate(1), 0.25 * kRate);
  EXPECT_GT(rate(0), 0.19 * kRate);
}

TEST(Grants, ARankContinuesFromTheGrantsOfAnEarlierDaemon) {
  GrantPolicy policy({{"pcie0", kRate, kRate}});
  const GrantPolicy::Grant on =
      policy.Resume(0, 0, {}, {1000, 500}, {800, 700});
  EXPECT_EQ(on.limit, (Directions{1000, 700}));
  EXPECT_EQ(policy.used().at(0), (Directions{800, 700}));
  // The policy believes no use of more than one copy above the limit.
  const uint64_t most = 1000 + GrantPolicy::kOneCopy;
  const GrantPolicy::Grant false_use =
      policy.Resume(1, 0, {}, {1000, 1000}, {UINT64_MAX, 0});
  EXPECT_EQ(false_use.limit, (Directions{most, 1000}));
  EXPECT_EQ(policy.used().at(1), (Directions{most, 0}));
}

}  // namespace
}  // namespace sluice::daemon
