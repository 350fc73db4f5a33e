// Tests swap plans of ranks with layers of several kinds: against GLPK, the
// average of the kinds, a grid, and values computed by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "planner/swap/node_swap.h"
#include "tests/planner/swap/naive_rows.h"
#include "tests/planner/swap/nodes.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;

NodeSwapResult MustPlanKinds(const SwapProblem& problem) {
  auto result = PlanNodeSwap(problem, SwapPolicy::kHidden);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : NodeSwapResult{};
}

// Returns a node with a rank of 10 layers: half take 1 s forward and 2 s
// backward, half four times as long. Each layer must swap 1 GB, and may swap 4
// GB more.
SwapProblem SlidingAndFull(double bytes_per_s) {
  SwapProblem p;
  p.links = {{"pcie0", bytes_per_s, bytes_per_s, {}}};
  p.numa = {{0, 1e12}};
  p.ranks = {{.name = "0", .numa = 0, .links = {"pcie0"}}};
  SwapProblem::Rank& rank = p.ranks[0];
  rank.kinds = {{.name = "sliding",
                 .layers = 5,
                 .forward_layer_s = 1,
                 .backward_layer_s = 2},
                {.name = "full",
                 .layers = 5,
                 .forward_layer_s = 4,
                 .backward_layer_s = 8}};
  for (size_t k = 0; k < 2; ++k) {
    rank.tensors.push_back({.name = "x",
                            .kind = k,
                            .bytes = 1e9,
                            .must = SwapProblem::Must::kSwap,
                            .can_keep = false});
    rank.tensors.push_back({.name = "ffn",
                            .kind = k,
                            .bytes = 4e9,
                            .recompute_s = 0.1,
                            .can_keep = false});
  }
  return p;
}

// A copy hides behind the layers of its own kind only.
TEST(Kinds, EachSwapsWhatItsOwnWindowHides) {
  const NodeSwapResult result = MustPlanKinds(SlidingAndFull(3e9));
  EXPECT_TRUE(result.in_time);
  EXPECT_NEAR(result.ranks[0].tensors[1].swap, 0.5, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[3].swap, 1, 1e-9);
  EXPECT_NEAR(result.joint->step_s, 5 * (3 + 12) + 5 * 0.05, 1e-9);
}

// The mandatory copies of the sliding layers take twice as long as their
// forward, so sliding layers get no other copies. The full layers use the whole
// link.
TEST(Kinds, AnOverloadingKindSwapsOnlyMandatoryBytesAndStopsNoOther) {
  const NodeSwapResult result = MustPlanKinds(SlidingAndFull(0.5e9));
  EXPECT_TRUE(result.feasible);
  EXPECT_FALSE(result.in_time);
  EXPECT_NEAR(result.ranks[0].tensors[1].swap, 0, 1e-8);
  EXPECT_NEAR(result.ranks[0].tensors[3].swap, 0.25, 1e-8);
  // Each sliding layer waits a second in forward, and not in backward.
  EXPECT_NEAR(result.stall_s, 5, 1e-6);
}

// Sliding layers of two ranks together overload the link, but sliding layers
// beside full layers do not.
TEST(Kinds, FullLayersUseWhatMandatoryCopiesLeaveOfALink) {
  SwapProblem p = SlidingAndFull(1.5e9);
  p.ranks.push_back(p.ranks[0]);
  p.ranks[1].name = "1";
  const NodeSwapResult result = MustPlanKinds(p);
  EXPECT_FALSE(result.in_time);
  for (const RankSwap& rank : result.ranks) {
    EXPECT_NEAR(rank.tensors[1].swap, 0, 1e-8);
    // A full layer copies (1 + 4 swap) GB in 4 s, while a sliding layer of the
    // other rank copies 1 GB/s.
    EXPECT_NEAR(rank.tensors[3].swap, 0.25, 1e-8);
  }
}

TEST(Kinds, HostMemoryGoesToTheKindThatCostsMostPerByte) {
  SwapProblem p = SlidingAndFull(1e12);
  p.numa[0].host_budget_bytes =
      30e9;  // 10 GB are mandatory; 20 GB hold one kind's ffn
  p.ranks[0].tensors[3].recompute_s = 0.2;
  const NodeSwapResult result = MustPlanKinds(p);
  EXPECT_NEAR(result.ranks[0].tensors[1].recompute, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[3].swap, 1, 1e-9);
}

// ---- Random nodes -----------------------------------------------------------

TEST(Kinds, RandomNodesMatchGlpkAndAreNeverWorseThanMemo) {
  std::mt19937 random(12);
  int feasible = 0, infeasible = 0, memos = 0;
  for (int i = 0; i < 150; ++i) {
    const SwapProblem node = WithKinds(RandomNode(random), random);
    const NodeSwapResult ours = MustPlanKinds(node);
    const Reference theirs = SolveWithGlpk(node);
    ASSERT_EQ(ours.feasible && ours.in_time, theirs.feasible)
        << i << " " << theirs.excess;
    infeasible += !ours.feasible;
    if (!theirs.feasible) continue;
    ++feasible;
    EXPECT_LE(WorstBreach(node, ours.ranks), 1e-6) << i;
    const SwapObjective naive = Naive(node, ours.ranks);
    EXPECT_NEAR(naive.step_s, ours.joint->step_s, 1e-12 * naive.step_s);
    EXPECT_NEAR(naive.moved_bytes, ours.joint->moved_bytes,
                1e-9 * std::max(1.0, naive.moved_bytes));
    const SwapObjective& want = theirs.objective;
    EXPECT_NEAR(ours.joint->step_s, want.step_s, 1e-6 * want.step_s) << i;
    EXPECT_NEAR(ours.joint->recompute_s, want.recompute_s, 1e-6 * want.step_s)
        << i;
    if (!ours.memo) continue;
    ++memos;
    EXPECT_TRUE(NotWorse(*ours.joint, ours.memo->objective, 1e-11)) << i;
  }
  EXPECT_GT(feasible, 40);
  EXPECT_GT(infeasible, 2);
  EXPECT_GT(memos, 5);
}

// Splits each rank's layers into two kinds with equal times and bytes.
SwapProblem Halved(SwapProblem node) {
  for (SwapProblem::Rank& rank : node.ranks) {
    SwapProblem::Kind& one = rank.kinds[0];
    if (one.layers < 2) continue;
    SwapProblem::Kind other = one;
    other.name = "other";
    other.layers = one.layers / 2;
    other.resident_layers = std::min(one.resident_layers, other.layers);
    one.layers -= other.layers;
    one.resident_layers -= other.resident_layers;
    rank.kinds.push_back(other);
    const std::vector<SwapProblem::Tensor> tensors = rank.tensors;
    for (SwapProblem::Tensor tensor : tensors) {
      tensor.kind = 1;
      rank.tensors.push_back(tensor);
    }
  }
  return node;
}

TEST(Kinds, TwoEqualKindsArePlannedLikeOne) {
  std::mt19937 random(13);
  int feasible = 0;
  for (int i = 0; i < 100; ++i) {
    const SwapProblem node = RandomNode(random);
    const NodeSwapResult one = MustPlanKinds(node);
    const NodeSwapResult two = MustPlanKinds(Halved(node));
    ASSERT_EQ(one.feasible, two.feasible) << i;
    ASSERT_EQ(one.in_time, two.in_time) << i;
    if (!one.feasible) continue;
    ++feasible;
    const double step = one.joint->step_s;
    EXPECT_NEAR(two.joint->step_s, step, 1e-8 * step) << i;
    EXPECT_NEAR(two.joint->recompute_s, one.joint->recompute_s, 1e-6 * step)
        << i;
    EXPECT_NEAR(two.stall_s, one.stall_s, 1e-6 * step) << i;
  }
  EXPECT_GT(feasible, 50);
}

// Replaces the kinds by one kind with the mean of all values over the layers.
// No layer is resident.
SwapProblem Averaged(const SwapProblem& node) {
  SwapProblem averaged = node;
  for (SwapProblem::Rank& rank : averaged.ranks) {
    const SwapProblem::Rank of = rank;
    SwapProblem::Kind mean;
    for (const SwapProblem::Kind& kind : of.kinds) mean.layers += kind.layers;
    const auto part = [&mean](const SwapProblem::Kind& kind) {
      return static_cast<double>(kind.layers) /
             static_cast<double>(mean.layers);
    };
    for (const SwapProblem::Kind& kind : of.kinds) {
      for (double SwapProblem::Kind::*value :
           {&SwapProblem::Kind::forward_layer_s,
            &SwapProblem::Kind::backward_layer_s,
            &SwapProblem::Kind::forward_d2h_fixed_bytes,
            &SwapProblem::Kind::forward_h2d_fixed_bytes,
            &SwapProblem::Kind::backward_d2h_fixed_bytes,
            &SwapProblem::Kind::backward_h2d_fixed_bytes}) {
        mean.*value += part(kind) * kind.*value;
      }
    }
    rank.kinds = {mean};
    rank.tensors.clear();
    for (const SwapProblem::Tensor& tensor : of.tensors) {
      if (tensor.kind == 0) {
        rank.tensors.push_back(tensor);
        rank.tensors.back().bytes = 0;
        if (tensor.recompute_s) rank.tensors.back().recompute_s = 0;
      }
      for (SwapProblem::Tensor& sum : rank.tensors) {
        if (sum.name != tensor.name) continue;
        const double weight = part(of.kinds[tensor.kind]);
        sum.bytes += weight * tensor.bytes;
        if (sum.recompute_s) *sum.recompute_s += weight * *tensor.recompute_s;
      }
    }
  }
  return averaged;
}

// Returns the averaged node's fractions for each kind of `node`.
std::vector<RankSwap> Spread(const SwapProblem& node,
                             const SwapProblem& averaged,
                             const NodeSwapResult& plan) {
  std::vector<RankSwap> ranks(node.ranks.size());
  for (size_t r = 0; r < node.ranks.size(); ++r) {
    std::map<std::string, plan::TokenFractions> of;
    for (size_t t = 0; t < averaged.ranks[r].tensors.size(); ++t) {
      of[averaged.ranks[r].tensors[t].name] = plan.ranks[r].tensors[t];
    }
    for (const SwapProblem::Tensor& tensor : node.ranks[r].tensors) {
      ranks[r].tensors.push_back(of.at(tensor.name));
    }
  }
  return ranks;
}

TEST(Kinds, ThePlanIsNeverWorseThanThatOfTheAveragedLayer) {
  std::mt19937 random(14);
  int same = 0, better = 0, shows = 0;
  for (int i = 0; i < 300; ++i) {
    SwapProblem node = WithKinds(RandomNode(random), random);
    for (SwapProblem::Rank& rank : node.ranks) {
      for (SwapProblem::Kind& kind : rank.kinds) kind.resident_layers = 0;
    }
    const SwapProblem averaged = Averaged(node);
    const NodeSwapResult plan = MustPlanKinds(averaged);
    if (!plan.feasible || !plan.in_time) continue;
    const std::vector<RankSwap> spread = Spread(node, averaged, plan);
    // An average preserves memory, which is a sum over all layers, but not a
    // link's load.
    if (WorstBreach(node, spread) > 1e-9) {
      ++shows;
      continue;
    }
    const NodeSwapResult ours = MustPlanKinds(node);
    ASSERT_TRUE(ours.feasible && ours.in_time) << i;
    const SwapObjective theirs = Naive(node, spread);
    EXPECT_TRUE(NotWorse(*ours.joint, theirs, 1e-8)) << i;
    const bool less = ours.joint->step_s < theirs.step_s * (1 - 1e-6);
    (less ? better : same) += 1;
  }
  EXPECT_GT(better, 10);
  EXPECT_GT(same + better, 50);
  EXPECT_GT(shows, 20);  // nodes with a link that the average plan overloads
}

// The grid has the fractions of one tensor of each of two kinds.
TEST(Kinds, NoPointOfAGridIsBetter) {
  std::mt19937 random(15);
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 20; ++i) {
    SwapProblem p = SlidingAndFull(3e9);
    p.numa[0].host_budget_bytes = uniform(0, 3e10);
    SwapProblem::Rank& rank = p.ranks[0];
    rank.gpu_budget_bytes = uniform(0, 1e10);
    rank.kinds[1].layers = 3;
    rank.tensors.clear();
    for (size_t k = 0; k < 2; ++k) {
      rank.tensors.push_back({.name = "a",
                              .kind = k,
                              .bytes = uniform(0, 4e9),
                              .recompute_s = uniform(0, 1)});
    }
    const NodeSwapResult result = MustPlanKinds(p);
    ASSERT_TRUE(result.feasible);
    ASSERT_FALSE(AGridPointIsBetter(p, *result.joint)) << i;
  }
}

}  // namespace
}  // namespace sluice::planner
