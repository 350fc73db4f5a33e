#include <algorithm>
#include <random>

#include "daemon/bandwidth/shares.h"
#include "daemon/bandwidth/topology.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::daemon::bandwidth {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr double kNear = 1e-2;

std::vector<double> SharedBytes(const std::vector<Want>& wants,
                                std::vector<double>& room) {
  return ShareFairly(wants, room).bytes;
}

TEST(FairShares, UnusedBandwidthGoesToOtherFlows) {
  const std::vector<int> path = {0};
  std::vector<double> room = {90};
  EXPECT_THAT(SharedBytes({{&path, 10}, {&path, 100}, {&path, 100}}, room),
              ElementsAre(10, 40, 40));
  EXPECT_NEAR(room[0], 0, kNear);
}

TEST(FairShares, SharesAreProportionalToWeights) {
  const std::vector<int> path = {0};
  std::vector<double> room = {90};
  EXPECT_THAT(SharedBytes({{&path, 100, 2}, {&path, 100, 1}}, room),
              ElementsAre(60, 30));
}

TEST(FairShares, AFlowWithAHeadStartWaitsForTheOthers) {
  const std::vector<int> path = {0};
  std::vector<double> room = {30};
  EXPECT_THAT(SharedBytes({{&path, 100, 1, 20}, {&path, 100}}, room),
              ElementsAre(5, 25));
  room = {30};
  EXPECT_THAT(SharedBytes({{&path, 100, 1, 50}, {&path, 100}}, room),
              ElementsAre(0, 30));
  room = {30};
  EXPECT_THAT(SharedBytes({{&path, 100, 1, 50}, {&path, 10}}, room),
              ElementsAre(20, 10));
}

TEST(FairShares, TheLevelAtWhichAChannelWasFullIsReported) {
  const std::vector<int> narrow = {1, 0}, wide = {0};
  std::vector<double> room = {100, 20};
  const FairShares shares =
      ShareFairly({{&narrow, 90, 2}, {&wide, 30, 1, 5}}, room);
  EXPECT_THAT(shares.bytes, ElementsAre(20, 30));
  EXPECT_THAT(shares.full_at, ElementsAre(kUnlimited, 10));
}

// Two flows share a switch of 30 bytes. All three share the root of 100 bytes.
TEST(FairShares, ANarrowSwitchLeavesTheRootToOthers) {
  const std::vector<int> behind = {1, 0}, beside = {0};
  std::vector<double> room = {100, 30};
  EXPECT_THAT(
      SharedBytes({{&behind, 1000}, {&behind, 1000}, {&beside, 1000}}, room),
      ElementsAre(15, 15, 70));
}

TEST(FairShares, WithoutALimitEachFlowGetsWhatItWants) {
  const std::vector<int> path = {0};
  std::vector<double> room = {kUnlimited};
  EXPECT_THAT(SharedBytes({{&path, 1e12}, {&path, 5}}, room),
              ElementsAre(DoubleNear(1e12, 1), DoubleNear(5, kNear)));
}

// Checks the definition of max-min: a flow that gets less than it wants has a
// saturated channel on its path on which no flow has more per weight.
TEST(FairShares, SharesAreMaxMinFairOnRandomForests) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 500; ++round) {
    const std::vector<double> capacity = {
        double(pick(1, 50)), double(pick(1, 50)), double(pick(1, 50)),
        double(pick(1, 50)), double(pick(1, 50))};
    const std::vector<std::vector<int>> paths = {
        {0}, {1, 0}, {2, 0}, {3, 1, 0}, {4}};
    std::vector<Want> wants;
    for (int i = pick(1, 12); i > 0; --i) {
      wants.push_back(
          {&paths[pick(0, 4)], double(pick(0, 30)), double(pick(1, 4))});
    }
    std::vector<double> room = capacity;
    const std::vector<double> shares = ShareFairly(wants, room).bytes;
    for (size_t i = 0; i < wants.size(); ++i) {
      EXPECT_LE(shares[i], wants[i].bytes + kNear);
      if (shares[i] >= wants[i].bytes - kNear) continue;
      const auto stops = [&](int channel) {
        if (room[channel] > kNear) return false;
        for (size_t j = 0; j < wants.size(); ++j) {
          const auto& path = *wants[j].path;
          if (std::find(path.begin(), path.end(), channel) == path.end()) {
            continue;
          }
          if (shares[j] / wants[j].weight >
              shares[i] / wants[i].weight + kNear) {
            return false;
          }
        }
        return true;
      };
      const auto& path = *wants[i].path;
      EXPECT_TRUE(std::any_of(path.begin(), path.end(), stops))
          << "round " << round << ", want " << i;
    }
    for (const double left : room) EXPECT_GE(left, -kNear);
  }
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
