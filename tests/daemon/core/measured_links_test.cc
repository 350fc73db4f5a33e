// Tests the measured speeds of links: when they are used, and which settings
// take precedence.
#include <array>
#include <limits>

#include "daemon/bandwidth/topology.h"
#include "daemon/core/policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// Returns a node of two GPUs behind a switch. Only link pcie1 has a configured
// speed.
NodeConfig Tree() {
  NodeConfig node = SmallNode();
  node.links = {{.name = "pcie0", .parent = "switch"},
                {.name = "pcie1",
                 .h2d_bytes_per_second = 1e9,
                 .d2h_bytes_per_second = 1e9,
                 .parent = "switch"},
                {.name = "switch"}};
  return node;
}

MeasuredLinks Found(absl::Time at = {}) {
  return {{{"pcie0", {2e9, 3e9, 0}}, {"pcie1", {5e9, 5e9, 0}}},
          {true, "root", at}};
}

void Set(CoreDriver& node, std::optional<MeasuredLinks> measured) {
  ASSERT_THAT(node.Change(LinksChange{std::move(measured)}), IsOk());
}

double SpeedOfFirst(const CoreDriver& node) {
  return node.core.config().links[0].h2d_bytes_per_second;
}

TEST(MeasuredLinks, MeasuredSpeedsAreUsedForLinksWithoutAConfiguredSpeed) {
  const std::vector<LinkSpeed> links = LinksWith(Tree().links, Found());
  EXPECT_EQ(links[0].h2d_bytes_per_second, 2e9);
  EXPECT_EQ(links[0].d2h_bytes_per_second, 3e9);
  EXPECT_EQ(links[0].parent, "switch");
  EXPECT_TRUE(links[0].measured);
  EXPECT_EQ(links[1].h2d_bytes_per_second, 1e9);
  EXPECT_FALSE(links[1].measured);
  EXPECT_FALSE(links[2].measured);
}

TEST(LinkSpeed, ALinksSpeedIsTheLowerOfTheLimitsThatAreSet) {
  for (const auto& [own, both, speed] :
       {std::array{1.0, 5.0, 1.0}, std::array{5.0, 1.0, 1.0},
        std::array{0.0, 5.0, 5.0}, std::array{5.0, 0.0, 5.0},
        std::array{0.0, 0.0, 0.0}}) {
    const LinkSpeed link{.h2d_bytes_per_second = own,
                         .both_bytes_per_second = both};
    EXPECT_EQ(SpeedOf(link, kH2d), speed) << own << " and " << both;
  }
}

TEST(MeasuredLinks, MeasurementsThatDoNotFitTheNodeAreRefused) {
  const std::vector<LinkSpeed> links = Tree().links;
  const auto check = [&](const std::string& name, MeasuredLink link) {
    return CheckMeasured(links, {{{name, link}}, {}});
  };
  EXPECT_THAT(CheckMeasured(links, Found()), IsOk());
  EXPECT_THAT(CheckMeasured(links, {}),
              StatusIs(kInvalid, HasSubstr("no link")));
  EXPECT_THAT(check("pcie9", {1e9, 1e9, 0}),
              StatusIs(kInvalid, HasSubstr("pcie9 was measured, but this node "
                                           "has no such link")));
  for (const double speed : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(check("pcie0", {1e9, speed, 0}),
                StatusIs(kInvalid, HasSubstr("bytes per second")));
  }
  EXPECT_THAT(check("pcie0", {}),
              StatusIs(kInvalid, HasSubstr("leave it out")));
  // Above a link with one limit for both directions, separate limits are
  // refused.
  EXPECT_THAT(
      CheckMeasured(links,
                    {{{"pcie0", {0, 0, 2e9}}, {"switch", {4e9, 0, 0}}}, {}}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("do not fit the configured speeds of other links")));
}

TEST(MeasuredLinks, MeasuredSpeedsApplyAtOnceWithoutRanks) {
  CoreDriver node(Tree());
  const MeasuredLinks found = Found(node.clock.Now());
  const auto kept =
      node.core.live_policy().With(LinksChange{Found()}, node.clock.Now());
  ASSERT_THAT(kept.status(), IsOk());
  EXPECT_EQ(kept->measured, found);
  EXPECT_EQ(SpeedOfFirst(node), 0) << "With() applies no speed";
  EXPECT_THAT(node.Change(LinksChange{}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("nothing to forget")));
  Set(node, Found());
  EXPECT_FALSE(node.core.live_policy().measured_waits());
  EXPECT_EQ(SpeedOfFirst(node), 2e9);
  ASSERT_TRUE(node.links);
  EXPECT_EQ((*node.links)[0].h2d_bytes_per_second, 2e9);
  EXPECT_EQ(node.core.live_policy().policy().measured, found);
  EXPECT_EQ(node.core.TakeSnapshot(nullptr, node.clock.Now()).measured, found);
  Set(node, std::nullopt);
  EXPECT_EQ(SpeedOfFirst(node), 0);
  EXPECT_EQ((*node.links)[0].h2d_bytes_per_second, 0);
  EXPECT_EQ(node.core.live_policy().policy().measured, std::nullopt);
}

TEST(MeasuredLinks, MeasuredSpeedsWaitUntilNoRankIsAttached) {
  CoreDriver node(Tree());
  const SessionId a = node.Attach("a", 0), b = node.Attach("b", 0);
  Set(node, Found());
  EXPECT_TRUE(node.core.live_policy().measured_waits());
  EXPECT_TRUE(node.core.TakeSnapshot(nullptr, node.clock.Now()).measured_waits);
  EXPECT_EQ(node.core.live_policy().policy().measured, Found(node.clock.Now()))
      << "the policy keeps the speeds while they wait";
  node.Die(a);
  EXPECT_EQ(SpeedOfFirst(node), 0);
  EXPECT_FALSE(node.links);
  // The end of the last rank's socket suffices; the process may live on.
  node.Run([&](Core& to) { return to.SocketEnded(b, node.clock.Now()); });
  EXPECT_FALSE(node.core.live_policy().measured_waits());
  EXPECT_EQ(SpeedOfFirst(node), 2e9);
  EXPECT_TRUE(node.links);
}

TEST(MeasuredLinks, MeasuredSpeedsApplyToTheNextDaemonFromItsStart) {
  CoreDriver next(Tree());
  Policy policy;
  policy.measured = Found();
  ASSERT_THAT(next.core.SetPolicy(policy, next.clock.Now()), IsOk());
  EXPECT_EQ(SpeedOfFirst(next), 2e9);
  EXPECT_EQ(next.core.live_policy().policy(), policy);
  EXPECT_THAT(next.core.log().events(), IsEmpty());
  // If the node's links have changed, the measurement is kept and logged, but
  // not used.
  CoreDriver other;
  policy.measured->links = {{"pcie0", {1e8, 1e8, 0}}, {"old", {1e8, 1e8, 0}}};
  ASSERT_THAT(other.core.SetPolicy(policy, other.clock.Now()), IsOk());
  EXPECT_EQ(SpeedOfFirst(other), 1e9);
  EXPECT_EQ(other.core.live_policy().policy(), policy);
  ASSERT_EQ(other.core.log().events().size(), 1u);
  EXPECT_THAT(other.core.log().events().front().text,
              HasSubstr("are not used: link old was measured"));
}

}  // namespace
}  // namespace sluice::daemon
