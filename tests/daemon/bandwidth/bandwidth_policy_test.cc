// Expected results are computed by hand. OneLink() moves one unit per second.
#include "daemon/bandwidth/bandwidth_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/bandwidth/node_simulation.h"

namespace sluice::daemon::bandwidth {
namespace {

constexpr double kUnit = 1e6;
constexpr absl::Duration kTick = absl::Milliseconds(2);

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

Topology OneLink() { return *Topology::Make({{"link", kUnit, kUnit}}); }

// Returns a topology in which both directions of a GPU's link load one memory.
Topology SharedMemory() {
  return *Topology::Make(
      {{"numa", 0, 0, "", kUnit}, {"gpu", kUnit, kUnit, "numa"}});
}

class OneLinkTest : public ::testing::Test {
 protected:
  void Open(std::initializer_list<int> flows) {
    for (const int flow : flows) node.Open(flow, 0, kH2d);
  }
  // `rate` is in units per second.
  void Promise(int flow, double rate) {
    node.policy().Promise(flow, rate * kUnit);
  }
  NodeSimulation node{OneLink(), kTick};
};

// The promise holds in every span of 20 ms, whenever the span begins: for a
// flow that was idle before, and for a flow that copies all the time.
TEST_F(OneLinkTest, APromiseIsKeptInEverySpanOf20Milliseconds) {
  Open({0, 1, 2, 3});
  Promise(0, 0.6);
  Promise(1, 0.3);
  for (const int flow : {1, 2, 3}) node.Ask(flow, 1000 * kUnit);
  for (int span = 0; span < 100; ++span) {
    node.RunUntil(node.now() + absl::Milliseconds(7 * (span % 5)));
    const double first = node.copied(0), second = node.copied(1);
    node.Ask(0, 0.6 * 0.02 * kUnit);
    node.RunUntil(node.now() + absl::Milliseconds(20));
    EXPECT_GE(node.copied(0) - first, 0.6 * 0.02 * kUnit - 1) << span;
    EXPECT_GE(node.copied(1) - second, 0.3 * 0.02 * kUnit - 1) << span;
  }
}

// Simulates a rank that frees its memory and leases it again, over and over.
TEST_F(OneLinkTest, RenewingAPromiseGainsNoBandwidth) {
  Open({0, 1});
  node.Ask(0, 1000 * kUnit);
  node.Ask(1, 1000 * kUnit);
  for (int i = 0; i < 1000; ++i) {
    Promise(0, 0);
    Promise(0, 0.4);
    node.RunUntil(node.now() + kTick);
  }
  EXPECT_NEAR(node.copied(1), 1 * kUnit, 0.02 * kUnit);
}

TEST_F(OneLinkTest, FairSharesAreEvenWithoutPromises) {
  Open({0, 1});
  node.Ask(0, 1 * kUnit);
  node.Ask(1, 3 * kUnit);
  node.RunUntil(At(2));
  EXPECT_NEAR(node.copied(0), 1 * kUnit, 1);
  node.RunUntil(At(4));
  EXPECT_NEAR(node.copied(1), 3 * kUnit, 1);
}

TEST_F(OneLinkTest, UnusedPromisedBandwidthIsLentAtOnce) {
  Open({0, 1});
  Promise(0, 0.9);
  node.Ask(1, 5 * kUnit);
  node.RunUntil(At(2));
  EXPECT_NEAR(node.copied(1), 2 * kUnit, 1);
  node.Ask(0, 0.9 * kUnit);
  node.RunUntil(At(3));
  EXPECT_NEAR(node.copied(0), 0.9 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 2.1 * kUnit, 1);
}

TEST_F(OneLinkTest, AFlowBeyondItsPromiseTakesNothingFromAnothersPromise) {
  Open({0, 1});
  Promise(0, 0.5);
  Promise(1, 0.4);
  node.Ask(0, 100 * kUnit);
  for (int second = 0; second < 10; ++second) {
    node.Ask(1, 0.4 * kUnit, At(second + 1));
    node.RunUntil(At(second + 1), [](int, const NodeSimulation::Copy& copy) {
      EXPECT_FALSE(copy.late());
    });
  }
  EXPECT_NEAR(node.copied(1), 4 * kUnit, 1);
  EXPECT_NEAR(node.copied(0), 6 * kUnit, 1);
}

// Flow 0 borrows bandwidth for 100 s, and owes nothing when flow 1 arrives.
TEST_F(OneLinkTest, AFlowThatBorrowedDoesNotStarveAfterwards) {
  Open({0, 1});
  Promise(0, 0.5);
  node.Ask(0, 1000 * kUnit);
  node.RunUntil(At(100));
  EXPECT_NEAR(node.copied(0), 100 * kUnit, 1);
  node.Ask(1, 1000 * kUnit);
  node.RunUntil(At(110));
  EXPECT_GE(node.copied(0), 105 * kUnit - 1);
  EXPECT_GE(node.copied(1), 2 * kUnit);
}

TEST_F(OneLinkTest, APromiseIsPartOfAFairShare) {
  Open({0, 1});
  Promise(0, 0.4);
  node.Ask(0, 1000 * kUnit);
  node.Ask(1, 1000 * kUnit);
  node.RunUntil(At(10));
  EXPECT_NEAR(node.copied(0), 5 * kUnit, 0.1 * kUnit);
  EXPECT_NEAR(node.copied(1), 5 * kUnit, 0.1 * kUnit);
}

// For 100 s flow 1 gets less than a fair share because of flow 0's promise.
// Flow 1 then shares evenly with flow 2.
TEST_F(OneLinkTest, AFlowThatGotLittleForLongIsNotRepaidLater) {
  Open({0, 1, 2});
  Promise(0, 0.8);
  node.Ask(0, 80 * kUnit);
  node.Ask(1, 1000 * kUnit);
  node.RunUntil(At(100));
  EXPECT_NEAR(node.copied(0), 80 * kUnit, 0.1 * kUnit);
  EXPECT_NEAR(node.copied(1), 20 * kUnit, 0.1 * kUnit);
  node.Ask(2, 1000 * kUnit);
  node.RunUntil(At(110));
  EXPECT_NEAR(node.copied(2), 5 * kUnit, 0.1 * kUnit);
}

TEST_F(OneLinkTest, BytesCopiedUnderAnEndedPromiseDoNotCount) {
  Open({0, 1});
  Promise(0, 0.8);
  for (const int flow : {0, 1}) node.Ask(flow, 1000 * kUnit);
  node.RunUntil(At(1));
  Promise(0, 0);
  const double before = node.copied(0);
  node.RunUntil(At(1) + kTick);
  EXPECT_NEAR(node.copied(0) - before, 0.001 * kUnit, 1);
}

TEST_F(OneLinkTest, PromisesBeyondTheLinkAreScaledDown) {
  Open({0, 1});
  Promise(0, 1.5);
  Promise(1, 0.5);
  node.Ask(0, 100 * kUnit);
  node.Ask(1, 100 * kUnit);
  node.RunUntil(At(10));
  EXPECT_NEAR(node.copied(0), 7.5 * kUnit, 0.1 * kUnit);
  EXPECT_NEAR(node.copied(1), 2.5 * kUnit, 0.1 * kUnit);
}

TEST_F(OneLinkTest, ADemandMayShrink) {
  Open({0});
  node.policy().SetWanted(0, 5 * kUnit);
  node.policy().SetWanted(0, 0.5 * kUnit);
  EXPECT_NEAR(node.policy().Share(node.now(), absl::Seconds(1)).at(0),
              0.5 * kUnit, 1);
  EXPECT_TRUE(node.policy().Share(node.now(), absl::Seconds(1)).empty());
}

TEST_F(OneLinkTest, ThePromiseOfALeavingFlowIsFreeAtOnce) {
  Open({0, 1, 2});
  Promise(0, 0.9);
  node.Ask(0, 100 * kUnit);
  node.Ask(1, 100 * kUnit);
  node.RunUntil(At(1));
  node.Close(0);
  Promise(2, 0.9);
  node.Ask(2, 0.9 * kUnit, At(2));
  node.RunUntil(At(2), [](int, const NodeSimulation::Copy& copy) {
    EXPECT_FALSE(copy.late());
  });
  EXPECT_NEAR(node.copied(2), 0.9 * kUnit, 1);
}

TEST(BandwidthPolicy, DirectionsOfALinkAreIndependent) {
  NodeSimulation node(OneLink(), kTick);
  node.Open(0, 0, kH2d);
  node.Open(1, 0, kD2h);
  node.Ask(0, 9 * kUnit);
  node.Ask(1, 9 * kUnit);
  node.RunUntil(At(2));
  EXPECT_NEAR(node.copied(0), 2 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 2 * kUnit, 1);
}

TEST(BandwidthPolicy, AnOffloadWithoutAPromiseGetsLessButDoesNotStarve) {
  NodeSimulation node(SharedMemory(), kTick);
  node.Open(0, 1, kD2h);
  node.Open(1, 1, kH2d);
  node.Ask(0, 99 * kUnit);
  node.Ask(1, 99 * kUnit);
  node.RunUntil(At(9));
  EXPECT_NEAR(node.copied(0), 1 * kUnit, 1);
  EXPECT_NEAR(node.copied(1), 8 * kUnit, 1);
}

// The switch and gpu0 promise 0.9 of their capacity. Each promised flow wants
// the bytes of 20 ms at once, and flows without a promise fill the switch.
TEST(BandwidthPolicy, PromisesAreKeptOnEachLinkOfAPath) {
  NodeSimulation node(*Topology::Make({{"switch", 2 * kUnit},
                                       {"gpu0", kUnit, 0, "switch"},
                                       {"gpu1", kUnit, 0, "switch"},
                                       {"gpu2", kUnit, 0, "switch"}}),
                      kTick);
  const double rates[] = {0.9 * kUnit, 0.45 * kUnit, 0.45 * kUnit};
  for (int flow : {0, 1, 2}) {
    node.Open(flow, 1 + flow, kH2d);
    node.policy().Promise(flow, rates[flow]);
    node.Open(10 + flow, 1 + flow, kH2d);
    node.Ask(10 + flow, 1000 * kUnit);
  }
  for (int span = 1; span <= 50; ++span) {
    for (int flow : {0, 1, 2}) {
      node.Ask(flow, 0.02 * rates[flow], At(0.02 * span));
    }
    node.RunUntil(At(0.02 * span), [](int, const NodeSimulation::Copy& copy) {
      EXPECT_FALSE(copy.late());
    });
  }
  for (int flow : {0, 1, 2}) EXPECT_EQ(node.overdue(flow), 0);
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
