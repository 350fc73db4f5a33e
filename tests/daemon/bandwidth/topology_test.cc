#include "daemon/bandwidth/topology.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon::bandwidth {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const Topology& topology, int link,
                               int direction) {
  std::vector<std::string> names;
  for (int channel : topology.PathOf(topology.channel_of(link, direction))) {
    names.push_back(topology.channels()[channel].name);
  }
  return names;
}

TEST(Topology, DirectionsGoApartUpToWhatBothLoad) {
  const auto topology = Topology::Make({
      {"numa0", std::nullopt, 0, 0, 100},
      {"root0", 0, 64, 64},
      {"gpu0", 1, 32, 16},
  });
  ASSERT_THAT(topology, IsOk());
  EXPECT_THAT(
      Names(*topology, 2, kH2d),
      ElementsAre("gpu0 h2d", "root0 h2d", "numa0 h2d", "numa0 both ways"));
  EXPECT_THAT(
      Names(*topology, 2, kD2h),
      ElementsAre("gpu0 d2h", "root0 d2h", "numa0 d2h", "numa0 both ways"));
  const auto& channels = topology->channels();
  EXPECT_EQ(channels[topology->channel_of(2, kD2h)].capacity, 16);
  EXPECT_EQ(channels[topology->channel_of(0, kD2h)].capacity, kUnlimited);
}

TEST(Topology, BothDirectionsStayTogetherAboveASharedLink) {
  const auto topology = Topology::Make({
      {"numa0", std::nullopt, 0, 0, 100},
      {"root0", 0},
      {"switch0", 1, 0, 0, 30},
  });
  ASSERT_THAT(topology, IsOk());
  EXPECT_THAT(Names(*topology, 2, kH2d),
              ElementsAre("switch0 h2d", "switch0 both ways", "root0 both ways",
                          "numa0 both ways"));
}

TEST(Topology, RefusesWhatIsNoForest) {
  EXPECT_THAT(Topology::Make({{"a", 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("link a: its parent 1 is none of 1")));
  EXPECT_THAT(
      Topology::Make({{"a", 1}, {"b", 0}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("circle")));
  EXPECT_THAT(
      Topology::Make({{"a", std::nullopt, -1}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("speed of -1")));
  // The part that both directions load has two separate channels above it, so
  // it would have no single parent.
  EXPECT_THAT(
      Topology::Make(
          {{"top", std::nullopt, 5, 5}, {"middle", 0}, {"low", 1, 0, 0, 5}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("link low: both directions load it together, "
                         "and apart top above it")));
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
