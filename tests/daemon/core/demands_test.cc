// Tests the rates that a plan's copies need, which of these rates are promised,
// and when the promises are passed to the grants.
#include "daemon/core/planning/demands.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/core/replan_fixture.h"

namespace sluice::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const Principal kAlice = {1, ""};
const Principal kBob = {2, ""};

LinkUser User(uint64_t session, const Principal& who, double h2d,
              const std::string& link = "pcie0") {
  return {SessionId(session), who, link, {h2d, 0}};
}

plan::RankPlan SwapHalf(const std::string& name) {
  plan::RankPlan plan;
  plan.classes = {{.name = name, .fractions = {0, 0.5, 0.5}, .why = {}}};
  return plan;
}

TEST(Demands, ALayersCopiesAreDueWithinOneLayersCompute) {
  // A layer takes 0.4 s forward and 0.6 s backward.
  plan::RankProfile profile = *ProfileOf(0, 0);
  EXPECT_THAT(DemandOf(profile, SwapHalf("ffn_up")).rates,
              ElementsAre(MiB(8).count() / 0.6, MiB(8).count() / 0.4));
  // Fixed bytes are added to each pass.
  profile.kinds[0].forward_h2d_fixed = MiB(40);
  profile.kinds[0].backward_d2h_fixed = MiB(6);
  EXPECT_THAT(DemandOf(profile, SwapHalf("ffn_up")).rates,
              ElementsAre(MiB(40).count() / 0.4, MiB(8).count() / 0.4));
}

TEST(Demands, AStepHasTheCopiesOfAllLayersThatMove) {
  plan::RankProfile profile = *ProfileOf(0, 0);
  profile.kinds[0].layers = 5;
  profile.kinds[0].resident_layers = 2;
  profile.kinds[0].forward_h2d_fixed = MiB(40);
  profile.kinds[0].backward_d2h_fixed = MiB(6);
  EXPECT_THAT(DemandOf(profile, SwapHalf("ffn_up")).step_bytes,
              ElementsAre(MiB(5 * 40 + 3 * 8), MiB(3 * 8 + 5 * 6)));
}

TEST(Demands, ResidentLayersAndFixedTrafficAddNoCopies) {
  plan::RankProfile profile = *ProfileOf(0, 0);
  EXPECT_THAT(DemandOf(profile, SwapHalf("another")).rates, ElementsAre(0, 0));
  profile.kinds[0].resident_layers = 1;
  EXPECT_THAT(DemandOf(profile, SwapHalf("ffn_up")).rates, ElementsAre(0, 0));
  profile.kinds[0].resident_layers = 0;
  profile.classes[0].traffic_in_fixed = true;
  EXPECT_THAT(DemandOf(profile, SwapHalf("ffn_up")).rates, ElementsAre(0, 0));
}

TEST(Demands, AMustSwapClassIsCopiedAndAFrozenPassNeedsNoRate) {
  plan::RankProfile profile = *ProfileOf(0, 0);
  profile.classes[0].must_swap = true;
  profile.kinds[0].backward_layer_seconds = 0;  // frozen
  EXPECT_THAT(DemandOf(profile, {}).rates,
              ElementsAre(0, MiB(16).count() / 0.4));
}

TEST(Demands, ALinkPromisesWholeDemandsUpToNineTenths) {
  const std::vector<LinkSpeed> links = {{"pcie0", 10, 10}};
  EXPECT_THAT(PromiseDemands(links, {User(1, kAlice, 6), User(2, kAlice, 4),
                                     User(3, kAlice, 3)}),
              ElementsAre(Pair(SessionId(1), ElementsAre(6, 0)),
                          Pair(SessionId(3), ElementsAre(3, 0))));
}

TEST(Demands, AUserIsPromisedAtMostAnEvenPartOfALink) {
  const std::vector<LinkSpeed> links = {{"pcie0", 10, 10}};
  EXPECT_THAT(PromiseDemands(links, {User(1, kAlice, 9), User(2, kBob, 4.5)}),
              ElementsAre(Pair(SessionId(2), ElementsAre(4.5, 0))));
  // Bob's rank has no plan, but still halves what Alice may be promised.
  EXPECT_THAT(PromiseDemands(links, {User(1, kAlice, 9), User(2, kBob, 0)}),
              IsEmpty());
}

TEST(Demands, EveryLinkOfThePathMustHaveRoom) {
  const std::vector<LinkSpeed> links = {{"gpu0", 10, 10, "switch"},
                                        {"gpu1", 10, 10, "switch"},
                                        {"switch", 12, 12}};
  EXPECT_THAT(PromiseDemands(links, {User(1, kAlice, 8, "gpu0"),
                                     User(2, kAlice, 8, "gpu1")}),
              ElementsAre(Pair(SessionId(1), ElementsAre(8, 0))));
  // A link without a limit has no speed of which a part could be promised.
  EXPECT_THAT(
      PromiseDemands({{"nvlink", 0, 0}}, {User(1, kAlice, 8, "nvlink")}),
      IsEmpty());
}

class DemandsOfPlans : public Replan {
 protected:
  // Returns the promises passed to the grants, in order.
  std::vector<std::pair<int, CopyRates>> Promises() const {
    std::vector<std::pair<int, CopyRates>> promises;
    for (const PromiseCopies& each : node.promises) {
      promises.emplace_back(each.slot, each.rates);
    }
    return promises;
  }
  std::optional<PlanCopies> Shown(const std::string& job) {
    for (const JobSnapshot& each :
         node.core.TakeSnapshot(nullptr, node.clock.Now()).jobs) {
      if (each.name == job) return each.ranks.at(0).plan_copies;
    }
    return std::nullopt;
  }
};

TEST_F(DemandsOfPlans, PromisesComeWithThePlanAndEndWithTheRank) {
  const int64_t whole = MiB(16).count();
  a = Ask("a");
  EXPECT_THAT(Promises(), IsEmpty());
  Solve({{1, MiB(8)}});
  const int slot = node.core.session(a)->grant_slot;
  EXPECT_THAT(Promises(),
              ElementsAre(Pair(slot, ElementsAre(whole / 0.6, whole / 0.4))));
  ASSERT_TRUE(Shown("a").has_value());
  EXPECT_THAT(Shown("a")->promised, ElementsAre(whole / 0.6, whole / 0.4));
  node.Die(a);
  EXPECT_EQ(Promises().size(), 1u);  // detaching its slot withdraws the promise
  b = Ask("b");
  EXPECT_FALSE(Shown("b").has_value());
}

TEST_F(DemandsOfPlans, PromisesChangeWhenTheRankTakesTheChange) {
  JoinThatWaits();
  const int64_t half = MiB(8).count();
  EXPECT_EQ(Promises().size(), 1u);  // b waits, and a runs by its old plan
  TakeChange(a, &held, MiB(16));
  const CopyRates halved = {half / 0.6, half / 0.4};
  EXPECT_EQ(Shown("a")->promised, halved);
  EXPECT_EQ(Shown("b")->promised, halved);
  EXPECT_EQ(Promises().size(), 3u);
}

TEST_F(DemandsOfPlans, PromisesSurviveATakeoverAndAreSentAgain) {
  a = Ask("a");
  Solve({{1, MiB(8)}});
  Core next(Node(), node.clock.Now());
  next.Load(node.core.Save());
  Effects effects = next.TakeOver({a}, node.clock.Now());
  std::vector<CopyRates> told;
  for (const Effect& effect : effects) {
    if (const auto* promise = std::get_if<PromiseCopies>(&effect)) {
      told.push_back(promise->rates);
    }
  }
  EXPECT_THAT(told, ElementsAre(Promises().at(0).second));
}

TEST_F(DemandsOfPlans, ARefusedPromiseIsLoggedAndShown) {
  const SessionId other = node.Attach("other", 0, 1, 2, 0);  // on the same link
  std::shared_ptr<plan::RankProfile> greedy = ProfileOf(0, 0);
  greedy->kinds[0].forward_layer_seconds = 1e-6;
  a = node.Attach("greedy", 0, 1, 1, 0);
  Submit(a, greedy, "greedy");
  Solve({{1, MiB(8)}});
  const CopyRates demand = {MiB(16).count() / 0.6, MiB(16).count() / 1e-6};
  EXPECT_EQ(Shown("greedy")->demand.rates, demand);
  EXPECT_EQ(Shown("greedy")->promised[kD2h], 0);
  const auto& events = node.core.log().events();
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const auto& each) {
    return each.text.find(
               "more than the link has left to promise; it gets its fair "
               "share") != std::string::npos;
  }));
  EXPECT_FALSE(Shown("other").has_value());
  EXPECT_TRUE(node.core.session(other)->is_rank());
}

}  // namespace
}  // namespace sluice::daemon
