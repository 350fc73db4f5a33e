// Hand computed cases, in injected time. A link moves one unit a second.
#include "daemon/bandwidth/bandwidth_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/bandwidth/node_simulation.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon::bandwidth {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;

constexpr double kUnit = 1e6;
constexpr absl::Duration kTick = absl::Milliseconds(2);

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

Demand DemandOfUnits(double units, double deadline_s, double period_s) {
  return {Bytes(static_cast<int64_t>(units * kUnit)), absl::Seconds(deadline_s),
          absl::Seconds(period_s)};
}

Topology OneLink() {
  return *Topology::Make({{"link", std::nullopt, kUnit, kUnit}});
}

// Both directions of one GPU load the memory below it.
Topology SharedMemory() {
  return *Topology::Make(
      {{"numa", std::nullopt, 0, 0, kUnit}, {"gpu", 0, kUnit, kUnit}});
}

// When the copies of each flow were done, in order.
using DoneAt = std::map<int, std::vector<double>>;

DoneAt RunTo(NodeSimulation& node, double until_s) {
  DoneAt done;
  node.RunUntil(At(until_s), [&](int flow, const NodeSimulation::Copy& copy) {
    done[flow].push_back(absl::ToDoubleSeconds(copy.done - absl::UnixEpoch()));
  });
  return done;
}

class OneLinkTest : public ::testing::Test {
 protected:
  void Open(std::initializer_list<int> flows) {
    for (const int flow : flows) node.Open(flow, 0, kH2d);
  }
  NodeSimulation node{OneLink(), {.promised = 1}, kTick};
};

// The example: A has 1 unit due at 4, B has 3 units due at 3.
TEST_F(OneLinkTest, EarliestDeadlineFirstMeetsBoth) {
  Open({0, 1});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(1, 4, 8), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(3, 3, 8), node.now()),
              IsOk());
  node.Ask(0, 1 * kUnit);
  node.Ask(1, 3 * kUnit);
  const DoneAt done = RunTo(node, 5);
  EXPECT_THAT(done.at(1), ::testing::ElementsAre(3));
  EXPECT_THAT(done.at(0), ::testing::ElementsAre(4));
}

TEST_F(OneLinkTest, FairSharesMakeOneLate) {
  Open({0, 1});
  node.Ask(0, 1 * kUnit);
  node.Ask(1, 3 * kUnit);
  const DoneAt done = RunTo(node, 5);
  EXPECT_THAT(done.at(0), ::testing::ElementsAre(2));
  EXPECT_THAT(done.at(1), ::testing::ElementsAre(4));
}

TEST_F(OneLinkTest, WhatIsPromisedAndNotUsedIsLentAtOnce) {
  Open({0, 1});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(1, 1, 1), node.now()),
              IsOk());
  node.Ask(1, 5 * kUnit);
  node.RunUntil(At(2));
  EXPECT_NEAR(node.copied(1), 2 * kUnit, 1);
  node.Ask(0, 1 * kUnit);
  node.RunUntil(At(3));
  EXPECT_NEAR(node.copied(0), 1 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 2 * kUnit, 1);
}

// A flow that asks for more than its promise gets it from what others leave.
TEST_F(OneLinkTest, WhoAsksForTooMuchTakesNothingFromAPromise) {
  Open({0, 1});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(0.5, 1, 1), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(0.5, 1, 1), node.now()),
              IsOk());
  node.Ask(0, 100 * kUnit);
  for (int second = 0; second < 10; ++second) {
    node.Ask(1, 0.5 * kUnit, At(second + 1));
    node.RunUntil(At(second + 1), [](int, const NodeSimulation::Copy& copy) {
      EXPECT_FALSE(copy.late());
    });
  }
  EXPECT_NEAR(node.copied(1), 5 * kUnit, 1);
  EXPECT_NEAR(node.copied(0), 5 * kUnit, 1);
}

// Lent for long, then another comes: nothing is to be paid back.
TEST_F(OneLinkTest, WhoWasLentDoesNotStarveAfterwards) {
  Open({0, 1});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(0.5, 1, 1), node.now()),
              IsOk());
  node.Ask(0, 1000 * kUnit);
  node.RunUntil(At(100));
  EXPECT_NEAR(node.copied(0), 100 * kUnit, 1);
  node.Ask(1, 1000 * kUnit);
  node.RunUntil(At(110));
  EXPECT_GE(node.copied(0), 105 * kUnit - 1);
  EXPECT_GE(node.copied(1), 2 * kUnit);
}

TEST_F(OneLinkTest, APromiseIsPartOfAFairShareAndNotBesideIt) {
  Open({0, 1});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(0.4, 1, 1), node.now()),
              IsOk());
  node.Ask(0, 1000 * kUnit);
  node.Ask(1, 1000 * kUnit);
  node.RunUntil(At(10));
  EXPECT_NEAR(node.copied(0), 5 * kUnit, 0.1 * kUnit);
  EXPECT_NEAR(node.copied(1), 5 * kUnit, 0.1 * kUnit);
}

// More than a fair share by promise, for long: once the promise is all it gets,
// the others do not have its past as well.
TEST_F(OneLinkTest, WhatAPromiseBroughtIsRememberedForAPeriod) {
  Open({0, 1, 2});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(0.8, 1, 1), node.now()),
              IsOk());
  node.Ask(0, 80 * kUnit);
  node.Ask(1, 1000 * kUnit);
  node.RunUntil(At(100));
  EXPECT_NEAR(node.copied(0), 80 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 20 * kUnit, 1);
  node.Ask(2, 1000 * kUnit);
  node.RunUntil(At(110));
  EXPECT_NEAR(node.copied(2), 5 * kUnit, 1);
}

TEST_F(OneLinkTest, AskInAllAsksForMoreAndForLess) {
  Open({0});
  node.policy().AskInAll(0, 5 * kUnit, node.now());
  node.policy().AskInAll(0, 0.5 * kUnit, node.now());
  EXPECT_NEAR(node.policy().Share(node.now(), absl::Seconds(1)).at(0),
              0.5 * kUnit, 1);
  node.policy().AskInAll(0, 0.5 * kUnit, node.now());
  EXPECT_NEAR(node.policy().Share(node.now(), absl::Seconds(1)).at(0),
              0.5 * kUnit, 1);
}

TEST_F(OneLinkTest, EqualDeadlinesGoByWeight) {
  node.Open(0, 0, kH2d, 1);
  node.Open(1, 0, kH2d, 3);
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(4, 8, 8), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(4, 8, 8), node.now()),
              IsOk());
  node.Ask(0, 4 * kUnit);
  node.Ask(1, 4 * kUnit);
  node.RunUntil(At(4));
  EXPECT_NEAR(node.copied(0), 1 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 3 * kUnit, 1);
}

// B leaves when it has had its 3 units, and A's unit was delayed for them: what
// B leaves cannot be promised before A has it.
TEST_F(OneLinkTest, WhatALeavingFlowHadIsPromisedAgainOnceTheLinkIsIdle) {
  Open({0, 1, 2});
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(1, 4, 8), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(3, 3, 8), node.now()),
              IsOk());
  node.Ask(0, 1 * kUnit, At(4));
  node.Ask(1, 3 * kUnit, At(3));
  node.RunUntil(At(3));
  node.Close(1);
  node.RunUntil(At(3.01));
  EXPECT_THAT(node.policy().Promise(2, DemandOfUnits(1, 1, 8), node.now()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  node.RunUntil(At(4), [](int, const NodeSimulation::Copy& copy) {
    EXPECT_FALSE(copy.late());
  });
  node.RunUntil(At(4.1));
  EXPECT_THAT(node.policy().Promise(2, DemandOfUnits(1, 1, 8), node.now()),
              IsOk());
  EXPECT_TRUE(node.policy().IsBinding(2));
}

TEST(BandwidthPolicy, DirectionsOfALinkDoNotMeet) {
  NodeSimulation node(OneLink(), {}, kTick);
  node.Open(0, 0, kH2d);
  node.Open(1, 0, kD2h);
  node.Ask(0, 9 * kUnit);
  node.Ask(1, 9 * kUnit);
  node.RunUntil(At(2));
  EXPECT_NEAR(node.copied(0), 2 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 2 * kUnit, 1);
}

TEST(BandwidthPolicy, PrefetchGoesFirstOfEqualDeadlinesOnWhatBothLoad) {
  NodeSimulation node(SharedMemory(), {.promised = 1}, kTick);
  node.Open(0, 1, kD2h);
  node.Open(1, 1, kH2d);
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(1, 2, 2), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(1, 2, 2), node.now()),
              IsOk());
  node.Ask(0, 1 * kUnit);
  node.Ask(1, 1 * kUnit);
  const DoneAt done = RunTo(node, 3);
  EXPECT_THAT(done.at(1), ::testing::ElementsAre(1));
  EXPECT_THAT(done.at(0), ::testing::ElementsAre(2));
}

TEST(BandwidthPolicy, AnOffloadWithoutAPromiseIsBehindAndDoesNotStarve) {
  NodeSimulation node(SharedMemory(), {.prefetch_first = 8}, kTick);
  node.Open(0, 1, kD2h);
  node.Open(1, 1, kH2d);
  node.Ask(0, 99 * kUnit);
  node.Ask(1, 99 * kUnit);
  node.RunUntil(At(9));
  EXPECT_NEAR(node.copied(0), 1 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 8 * kUnit, 1);
}

// Dhall's effect (admission.h): by deadlines alone the third would be late.
TEST(BandwidthPolicy, OnATreeShortDeadlinesDoNotMakeALongOneLate) {
  NodeSimulation node(*Topology::Make({{"switch", std::nullopt, 2.4 * kUnit},
                                       {"gpu0", 0, kUnit},
                                       {"gpu1", 0, kUnit},
                                       {"gpu2", 0, kUnit}}),
                      {.promised = 1}, kTick);
  for (int flow : {0, 1, 2}) node.Open(flow, 1 + flow, kH2d);
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(0.2, 0.3, 4), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(0.2, 0.3, 4), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(2, DemandOfUnits(1, 1, 4), node.now()),
              IsOk());
  node.Ask(0, 0.2 * kUnit, At(0.3));
  node.Ask(1, 0.2 * kUnit, At(0.3));
  node.Ask(2, 1 * kUnit, At(1));
  int done = 0;
  node.RunUntil(At(2), [&](int, const NodeSimulation::Copy& copy) {
    EXPECT_FALSE(copy.late());
    ++done;
  });
  EXPECT_EQ(done, 3);
}

// A has copied little by 1, as was promised: others had earlier deadlines. If B
// were promised 3 units within 3 s from then on, its GPU's link would owe more
// than it carries.
TEST(BandwidthPolicy, APromiseBindsOnceWhatWasPromisedBeforeIsCopied) {
  NodeSimulation node(*Topology::Make({{"switch", std::nullopt, 2 * kUnit},
                                       {"gpu0", 0, kUnit},
                                       {"gpu1", 0, 1.9 * kUnit}}),
                      {.promised = 1}, kTick);
  node.Open(0, 1, kH2d);
  node.Open(1, 1, kH2d);
  node.Open(2, 2, kH2d);
  ASSERT_THAT(node.policy().Promise(0, DemandOfUnits(1, 4, 8), node.now()),
              IsOk());
  ASSERT_THAT(node.policy().Promise(2, DemandOfUnits(1, 1, 1), node.now()),
              IsOk());
  node.Ask(0, 1 * kUnit, At(4));
  node.Ask(2, 1 * kUnit, At(1));
  const auto on_time = [](int flow, const NodeSimulation::Copy& copy) {
    EXPECT_FALSE(copy.late()) << flow;
  };
  node.RunUntil(At(1), on_time);
  EXPECT_GT(node.backlog(0), 0.1 * kUnit);
  ASSERT_THAT(node.policy().Promise(1, DemandOfUnits(3, 3, 8), node.now()),
              IsOk());
  EXPECT_FALSE(node.policy().IsBinding(1));
  node.RunUntil(At(2), on_time);
  ASSERT_TRUE(node.policy().IsBinding(1));
  node.Ask(1, 3 * kUnit, At(5));
  node.RunUntil(At(6), on_time);
  EXPECT_NEAR(node.copied(1), 3 * kUnit, 1);
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
