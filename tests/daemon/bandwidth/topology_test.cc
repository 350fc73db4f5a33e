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

TEST(Topology, DirectionsAreSeparateUpToASharedChannel) {
  const auto topology = Topology::Make({
      {"numa0", 0, 0, "", 100},
      {"root0", 64, 64, "numa0"},
      {"gpu0", 32, 16, "root0"},
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
      {"numa0", 0, 0, "", 100},
      {"root0", 0, 0, "numa0"},
      {"switch0", 0, 0, "root0", 30},
  });
  ASSERT_THAT(topology, IsOk());
  EXPECT_THAT(Names(*topology, 2, kH2d),
              ElementsAre("switch0 h2d", "switch0 both ways", "root0 both ways",
                          "numa0 both ways"));
}

TEST(Topology, ALinkWithAMissingParentIsARoot) {
  const auto topology = Topology::Make({{"a", 5, -1, "missing"}});
  ASSERT_THAT(topology, IsOk());
  EXPECT_THAT(Names(*topology, 0, kH2d), ElementsAre("a h2d"));
  EXPECT_EQ(topology->channels()[topology->channel_of(0, kD2h)].capacity,
            kUnlimited);
}

TEST(Topology, InvalidLinksAreRefused) {
  EXPECT_THAT(
      Topology::Make({{"a", 0, 0, "b"}, {"b", 0, 0, "a"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("form a cycle")));
  EXPECT_THAT(
      Topology::Make({{"c", 0, 0, "a"}, {"a", 0, 0, "b"}, {"b", 0, 0, "a"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("link c: its parents form a cycle")));
  EXPECT_THAT(
      Topology::Make({{"a", kUnlimited}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("speed of inf")));
  // The part that both directions load has two separate channels above it, so
  // it would have no single parent.
  EXPECT_THAT(
      Topology::Make(
          {{"top", 5, 5}, {"middle", 0, 0, "top"}, {"low", 0, 0, "middle", 5}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("link low: it limits both directions together, but "
                         "link top above it limits each alone")));
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
