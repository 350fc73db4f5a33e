// Tests PlanNode on ranks with layers of several kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/node_samples.h"

namespace sluice::planner {
namespace {

using ::testing::HasSubstr;

// Splits SampleProfile's ten layers into five "sliding" layers, which take as
// long as before, and five "full" layers, which take four times as long.
plan::RankProfile SlidingAndFull(uint64_t rank) {
  plan::RankProfile p = SampleProfile(rank);
  p.kinds = {{.name = "sliding",
              .layers = 5,
              .forward_layer_seconds = 1,
              .backward_layer_seconds = 2},
             {.name = "full",
              .layers = 5,
              .forward_layer_seconds = 4,
              .backward_layer_seconds = 8}};
  const std::vector<plan::SkeletalClass> classes = p.classes;
  p.classes.clear();
  for (const char* kind : {"sliding", "full"}) {
    for (plan::SkeletalClass c : classes) {
      c.kind = kind;
      p.classes.push_back(c);
    }
  }
  return p;
}

TEST(PlanNode, CopiesOfAKindHideBehindItsOwnLayers) {
  const plan::RankPlan rank =
      PlanOne(SlidingAndFull(0), Resources(3e6, kPlenty));
  // (1 + 4 alpha) MB are copied at 3 MB/s, in windows of 1 s and of 4 s.
  EXPECT_EQ(rank.classes[1].fractions.swap, 0.5);
  EXPECT_EQ(rank.classes[1].kind, "sliding");
  EXPECT_EQ(rank.classes[3].fractions.swap, 1);
  EXPECT_EQ(rank.classes[3].kind, "full");
  EXPECT_EQ(rank.alpha, 0.75);
  EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
  EXPECT_EQ(rank.host_bytes, Bytes(5 * 3'000'000 + 5 * 5'000'000));
  EXPECT_THAT(rank.classes[1].why,
              HasSubstr("50.0 % swapped, the rest recomputed: link pcie0 d2h "
                        "is full while layers of kind 'sliding' run; all of "
                        "it recomputed would add 0.01 s a layer"));
  EXPECT_THAT(rank.classes[3].why, HasSubstr("swapped whole"));
}

TEST(PlanNode, AnOverloadingKindSwapsOnlyWhatItMustAndLimitsNoOtherKind) {
  const plan::RankPlan rank =
      PlanOne(SlidingAndFull(0), Resources(0.5e6, kPlenty));
  EXPECT_EQ(rank.classes[1].fractions.swap, 0);
  EXPECT_EQ(rank.classes[3].fractions.swap, 0.25);
  EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
  EXPECT_THAT(rank.classes[1].why, HasSubstr("kind 'sliding' run"));
  EXPECT_THAT(rank.classes[3].why, HasSubstr("kind 'full' run"));
}

TEST(PlanNode, FrozenLayersDoNotChangeThePlanOfOtherLayers) {
  plan::RankProfile p = SlidingAndFull(0);
  const plan::RankPlan without = PlanOne(p, Resources(3e6, kPlenty));
  p.kinds.push_back({.name = "frozen",
                     .layers = 7,
                     .forward_layer_seconds = 1,
                     .forward_d2h_fixed = Bytes(2'000'000)});
  const plan::RankPlan with = PlanOne(p, Resources(3e6, kPlenty));
  EXPECT_EQ(with.alpha, without.alpha);
  EXPECT_EQ(with.host_bytes, without.host_bytes);
  EXPECT_EQ(with.classes.size(), without.classes.size());
}

TEST(PlanNode, RanksOfAJobHaveEqualFractionsOfASharedClassOfAKind) {
  std::vector<plan::RankProfile> profiles = {SlidingAndFull(0),
                                             SlidingAndFull(1)};
  for (plan::RankProfile& p : profiles) {
    for (plan::SkeletalClass& c : p.classes) c.shared = !c.must_swap;
  }
  NodeResources resources = Resources(3e6, kPlenty);
  resources.links.push_back({"pcie1", 2e6, 2e6, {1}});
  const plan::NodePlan plan = MustPlan(profiles, resources);
  for (const plan::RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.classes[1].fractions.swap, 0.25);
    EXPECT_EQ(rank.classes[3].fractions.swap, 1);
  }
  EXPECT_THAT(
      plan.ranks[0].classes[1].why,
      HasSubstr("link pcie1 d2h is full while layers of kind 'sliding' run"));
}

TEST(PlanNode, AKindWithoutAWindowSwapsOnlyWhatItMust) {
  plan::RankProfile p = SlidingAndFull(0);
  p.kinds[0].forward_layer_seconds = 0;
  const plan::RankPlan rank = PlanOne(p, Resources(3e6, kPlenty));
  EXPECT_EQ(rank.classes[1].fractions.swap, 0);
  EXPECT_THAT(rank.classes[1].why, HasSubstr("no measured window"));
  EXPECT_EQ(rank.classes[3].fractions.swap, 1);
}

// All ranks of a job have the same fractions of a class that they share.
TEST(PlanNode, ARankWithoutAWindowLimitsOnlyItsJobsSharedClasses) {
  std::vector<plan::RankProfile> profiles = {
      SlidingAndFull(0), SlidingAndFull(1), SlidingAndFull(0)};
  profiles[1].kinds[0].forward_layer_seconds = 0;
  profiles[2].job = 1;
  for (plan::RankProfile& p : profiles) p.classes[1].shared = true;
  const plan::NodePlan plan = MustPlan(profiles, Resources(kFast, kPlenty, 3));
  ASSERT_EQ(plan.ranks.size(), 3);
  EXPECT_EQ(plan.ranks[0].classes[1].fractions.swap, 0);
  EXPECT_EQ(plan.ranks[1].classes[1].fractions.swap, 0);
  EXPECT_EQ(plan.ranks[2].classes[1].fractions.swap, 1);
  EXPECT_EQ(plan.ranks[0].classes[3].fractions.swap, 1);
}

TEST(PlanNode, UnknownAndDuplicateKindsAreRefused) {
  plan::RankProfile p = SlidingAndFull(0);
  p.classes[1].kind = "wide";
  EXPECT_EQ(std::string(PlanNode({p}, {}, {}).status().message()),
            "rank 0, class 'wide/ffn_up': its rank has no layers of the kind "
            "'wide'");
  p = SlidingAndFull(0);
  p.kinds[1].name = "sliding";
  EXPECT_EQ(std::string(PlanNode({p}, {}, {}).status().message()),
            "rank 0 has two kinds of layers 'sliding'");
}

// ---- Random ranks -----------------------------------------------------------

class Maker {
 public:
  explicit Maker(std::mt19937& random) : random_(random) {}

  plan::RankProfile Profile(uint64_t r) {
    plan::RankProfile p = SlidingAndFull(r);
    for (plan::LayerKind& kind : p.kinds) {
      kind.layers = 1 + static_cast<int64_t>(random_() % 20);
      kind.forward_layer_seconds = Uniform(0.3, 3);
      kind.backward_layer_seconds = Uniform(0.3, 6);
      kind.forward_d2h_fixed = Some(2e6);
      kind.forward_h2d_fixed = Some(4e6);
      kind.backward_d2h_fixed = Some(4e6);
      kind.backward_h2d_fixed = Some(2e6);
    }
    for (plan::SkeletalClass& c : p.classes) {
      c.bytes_per_layer = Some(9e6);
      if (!c.must_swap) c.recompute_seconds = Uniform(0, 0.02);
    }
    return p;
  }

  NodeResources Node(size_t ranks) {
    return Resources(Uniform(2e6, 3e7), Bytes(Whole(1e8, 1e9)), ranks);
  }

 private:
  double Uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() % 10001) / 1e4;
  }
  int64_t Whole(double low, double high) {
    return static_cast<int64_t>(Uniform(low, high));
  }
  Bytes Some(double most) { return Bytes(Whole(0, most)); }

  std::mt19937& random_;
};

// MustPlan has every plan checked by proto/plan/validate.h, which knows each
// kind's windows.
TEST(PlanNode, PlansOfRandomKindsAreValid) {
  std::mt19937 random(21);
  int swaps = 0, overloads = 0;
  for (int round = 0; round < 200; ++round) {
    Maker maker(random);
    std::vector<plan::RankProfile> profiles;
    for (uint64_t r = 0; r <= random() % 3; ++r) {
      profiles.push_back(maker.Profile(r));
    }
    const plan::NodePlan plan = MustPlan(profiles, maker.Node(profiles.size()));
    for (const plan::RankPlan& rank : plan.ranks) {
      swaps += rank.classes[1].fractions.swap > 0 &&
               rank.classes[1].fractions.swap != rank.classes[3].fractions.swap;
    }
    for (const plan::PlanLimit& limit : plan.limits) {
      overloads += limit.used > limit.capacity * (1 + 1e-6);
    }
  }
  EXPECT_GT(swaps, 50);
  EXPECT_GT(overloads, 10);
}

// Returns the recomputation seconds of a plan over all layers.
double RecomputeSeconds(const plan::RankProfile& p,
                        const plan::RankPlan& plan) {
  double sum = 0;
  for (size_t i = 0; i < p.classes.size(); ++i) {
    sum += static_cast<double>(plan::KindOf(p, p.classes[i]).moving_layers()) *
           p.classes[i].recompute_seconds * plan.classes[i].fractions.recompute;
  }
  return sum;
}

TEST(PlanNode, TwoEqualKindsArePlannedLikeOneKind) {
  std::mt19937 random(22);
  for (int round = 0; round < 100; ++round) {
    Maker maker(random);
    plan::RankProfile two = maker.Profile(0);
    plan::RankProfile one = two;
    one.kinds.pop_back();
    one.classes.resize(2);
    const int64_t half = two.kinds[0].layers;
    one.kinds[0].layers = 2 * half;
    two.kinds[1] = two.kinds[0];
    two.kinds[1].name = "full";
    for (size_t i = 0; i < 2; ++i) {
      two.classes[2 + i] = two.classes[i];
      two.classes[2 + i].kind = "full";
    }
    const NodeResources resources = maker.Node(1);
    const plan::NodePlan first = MustPlan({one}, resources);
    const plan::NodePlan second = MustPlan({two}, resources);
    ASSERT_EQ(first.infeasible, second.infeasible) << round;
    if (!first.infeasible.empty()) continue;
    // Both plans round each fraction down to a multiple of 1/4096.
    const double cut =
        4 * static_cast<double>(half) * one.classes[1].recompute_seconds / 4096;
    EXPECT_NEAR(RecomputeSeconds(two, second.ranks[0]),
                RecomputeSeconds(one, first.ranks[0]), cut + 1e-9)
        << round;
    EXPECT_EQ(second.ranks[0].alpha_limited_by, first.ranks[0].alpha_limited_by)
        << round;
  }
}

}  // namespace
}  // namespace sluice::planner
