// Compares joint plans without voluntary stalls with MEMO's plans, with GLPK's,
// and with rows that are written independently of the planner. Plans with
// voluntary stalls must make no rank slower.
#include "planner/swap/node_swap.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "tests/planner/swap/naive_rows.h"
#include "tests/planner/swap/nodes.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;
using RowKind = CapacityRow::Kind;
using ::testing::HasSubstr;

constexpr int kNodes = 1000;

NodeSwapResult MustPlanSwap(const SwapProblem& problem,
                            SwapPolicy policy = SwapPolicy::kHidden) {
  auto result = PlanNodeSwap(problem, policy);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : NodeSwapResult{};
}

// ---- Overloaded links -------------------------------------------------------

// Returns the node with links that are faster by `part` of their excess.
SwapProblem WithExcess(SwapProblem node, const NodeSwapResult& result,
                       double part) {
  for (const CapacityRow& row : result.rows) {
    const double by = 1 + part * row.excess;
    if (row.kind == RowKind::kLinkD2h)
      node.links[row.index].d2h_bytes_per_s *= by;
    if (row.kind == RowKind::kLinkH2d)
      node.links[row.index].h2d_bytes_per_s *= by;
    if (row.kind == RowKind::kLinkTotal) {
      *node.links[row.index].total_bytes_per_s *= by;
    }
  }
  return node;
}

// Checks by GLPK that no plan overloads the links less: the node becomes
// feasible if its links are faster by the plan's excess, but not by 0.99 of it.
void ExpectTheLeastOverload(const SwapProblem& node,
                            const NodeSwapResult& result, int i) {
  EXPECT_FALSE(SolveWithGlpk(node).feasible) << i;
  EXPECT_FALSE(SolveWithGlpk(WithExcess(node, result, 0.99)).feasible) << i;
  const SwapProblem raised = WithExcess(node, result, 1 + 1e-9);
  EXPECT_LE(WorstBreach(raised, result.ranks), 1e-6) << i;
  const Reference theirs = SolveWithGlpk(raised);
  EXPECT_TRUE(theirs.feasible) << i << " " << theirs.excess;
  const double step = theirs.objective.step_s;
  EXPECT_NEAR(result.joint->step_s, step, 1e-6 * step) << i;
  EXPECT_FALSE(result.memo) << i;
  double slowest = 0;
  for (const RankSwap& rank : result.ranks) {
    EXPECT_GE(rank.stall_s, 0) << i;
    slowest = std::max(slowest, rank.step_s + rank.stall_s);
  }
  EXPECT_NEAR(slowest, result.joint->step_s + result.stall_s, 1e-9 * slowest);
}

TEST(NodeSwap, OverloadedLinksHaveTheLeastExcess) {
  std::mt19937 random(2);
  int slow = 0;
  for (int i = 0; i < kNodes / 4; ++i) {
    const SwapProblem node = RandomNode(random);
    const NodeSwapResult result = MustPlanSwap(node);
    if (!result.feasible || result.in_time) continue;
    ++slow;
    ExpectTheLeastOverload(node, result, i);
  }
  EXPECT_GT(slow, 10);
}

// ---- 1,000 random nodes -----------------------------------------------------

TEST(NodeSwap, RandomNodesKeepTheirLimitsAndAreNeverWorseThanMemos) {
  std::mt19937 random(1);
  int feasible = 0, memos = 0, better = 0;
  for (int i = 0; i < kNodes; ++i) {
    const SwapProblem node = RandomNode(random);
    const NodeSwapResult result = MustPlanSwap(node);
    if (!result.feasible) {
      EXPECT_FALSE(result.memo) << i;
      continue;
    }
    if (!result.in_time) continue;  // see OverloadedLinksHaveTheLeastExcess
    ++feasible;
    EXPECT_LE(WorstBreach(node, result.ranks), 1e-6) << i;
    const SwapObjective naive = Naive(node, result.ranks);
    EXPECT_NEAR(naive.step_s, result.joint->step_s, 1e-12 * naive.step_s);
    EXPECT_NEAR(naive.recompute_s, result.joint->recompute_s,
                1e-12 * Near(naive.recompute_s));
    EXPECT_NEAR(naive.moved_bytes, result.joint->moved_bytes,
                1e-12 * Near(naive.moved_bytes));
    if (!result.memo) continue;
    ++memos;
    EXPECT_TRUE(NotWorse(*result.joint, result.memo->objective, 1e-11)) << i;
    better += result.joint->step_s < result.memo->objective.step_s * 0.999;
    const NodeSwapResult memo = MustPlanSwap(node, SwapPolicy::kMemo);
    EXPECT_LE(WorstBreach(node, memo.ranks), 1e-6) << i;
  }
  // The nodes are not all trivial.
  EXPECT_GT(feasible, 400);
  EXPECT_LT(feasible, 900);
  EXPECT_GT(memos, 150);
  EXPECT_GT(better, 50);
}

TEST(NodeSwap, RandomNodesMatchGlpk) {
  std::mt19937 random(2);
  int infeasible = 0;
  for (int i = 0; i < kNodes; ++i) {
    const SwapProblem node = RandomNode(random);
    const NodeSwapResult ours = MustPlanSwap(node);
    const Reference theirs = SolveWithGlpk(node);
    ASSERT_EQ(ours.feasible && ours.in_time, theirs.feasible)
        << i << " " << theirs.excess;
    // OverloadedLinksHaveTheLeastExcess tests the overloaded nodes.
    if (!ours.in_time && ours.feasible) continue;
    if (ours.feasible) {
      const SwapObjective& want = theirs.objective;
      EXPECT_NEAR(ours.joint->step_s, want.step_s, 1e-6 * want.step_s) << i;
      EXPECT_NEAR(ours.joint->recompute_s, want.recompute_s, 1e-6 * want.step_s)
          << i;
      EXPECT_NEAR(ours.joint->moved_bytes, want.moved_bytes,
                  1e-4 * want.moved_bytes + 1e4)
          << i;
      continue;
    }
    ++infeasible;
    double excess = 0;
    for (const CapacityRow& row : ours.rows) excess += row.excess;
    EXPECT_NEAR(excess, theirs.excess, 1e-6 * Near(theirs.excess)) << i;
  }
  EXPECT_GT(infeasible, 20);
}

TEST(NodeSwap, ALargeNodeMatchesGlpk) {
  const SwapProblem node = BusyNode(32, 24);
  const NodeSwapResult ours = MustPlanSwap(node);
  const Reference theirs = SolveWithGlpk(node);
  ASSERT_TRUE(ours.feasible && ours.in_time && theirs.feasible);
  const SwapObjective& other = theirs.objective;
  EXPECT_NEAR(ours.joint->step_s / other.step_s, 1, 1e-8);
  EXPECT_NEAR(ours.joint->recompute_s / other.recompute_s, 1, 1e-6);
  EXPECT_NEAR(ours.joint->moved_bytes / other.moved_bytes, 1, 1e-6);
}

// ---- Copies that are exposed by choice --------------------------------------

// Multiplies all recomputation seconds by `times`.
SwapProblem Dearer(SwapProblem node, double times) {
  for (SwapProblem::Rank& rank : node.ranks) {
    for (SwapProblem::Tensor& tensor : rank.tensors) {
      if (tensor.recompute_s) *tensor.recompute_s *= times;
    }
  }
  return node;
}

TEST(NodeSwap, StallsByChoiceMakeNoRankSlowerAndTheSlowestFaster) {
  std::mt19937 random(9);
  int chosen = 0;
  for (int i = 0; i < kNodes / 2; ++i) {
    const SwapProblem node = Dearer(RandomNode(random), 20);
    const NodeSwapResult hidden = MustPlanSwap(node);
    const NodeSwapResult result = MustPlanSwap(node, SwapPolicy::kJoint);
    ASSERT_EQ(hidden.feasible, result.feasible) << i;
    if (!result.feasible) continue;
    double before = 0, after = 0;
    for (size_t r = 0; r < node.ranks.size(); ++r) {
      const RankSwap &was = hidden.ranks[r], &is = result.ranks[r];
      EXPECT_LE(is.step_s + is.stall_s, (was.step_s + was.stall_s) * (1 + 1e-6))
          << i;
      before = std::max(before, was.step_s + was.stall_s);
      after = std::max(after, is.step_s + is.stall_s);
    }
    for (const CapacityRow& row : result.rows) {
      if (row.kind == RowKind::kLinkD2h || row.kind == RowKind::kLinkH2d ||
          row.kind == RowKind::kLinkTotal) {
        continue;
      }
      EXPECT_LE(row.used, row.capacity * (1 + 1e-6) + 1) << i;
    }
    EXPECT_EQ(after < before * (1 - 1e-6), result.hidden_step_s.has_value());
    chosen += result.hidden_step_s.has_value();
  }
  EXPECT_GT(chosen, 10);
}

// ---- Changed nodes ----------------------------------------------------------

TEST(NodeSwap, TheOrderOfRanksAndLinksDoesNotChangeThePlan) {
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const SwapProblem node = RandomNode(random);
    const NodeSwapResult before = MustPlanSwap(node);
    SwapProblem mixed = node;
    std::vector<size_t> order(node.ranks.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (size_t r = 0; r < order.size(); ++r) {
      mixed.ranks[r] = node.ranks[order[r]];
    }
    std::reverse(mixed.links.begin(), mixed.links.end());
    std::reverse(mixed.numa.begin(), mixed.numa.end());
    const NodeSwapResult after = MustPlanSwap(mixed);
    ASSERT_EQ(before.feasible, after.feasible) << i;
    if (!before.feasible) continue;
    EXPECT_EQ(before.joint->step_s, after.joint->step_s) << i;
    for (size_t r = 0; r < order.size(); ++r) {
      EXPECT_EQ(before.ranks[order[r]].added_s, after.ranks[r].added_s) << i;
    }
    for (const CapacityRow& row : after.rows) {
      if (row.kind != RowKind::kGpu) continue;
      for (const CapacityRow& other : before.rows) {
        if (other.kind != RowKind::kGpu || other.index != order[row.index]) {
          continue;
        }
        EXPECT_EQ(row.used, other.used) << i;
        EXPECT_EQ(row.one_more.step_s, other.one_more.step_s) << i;
      }
    }
  }
}

void Raise(SwapProblem* node, std::mt19937& random) {
  const double by = 1 + static_cast<double>(random() % 100) / 50;
  switch (random() % 4) {
    case 0:
      node->links[random() % node->links.size()].d2h_bytes_per_s *= by;
      break;
    case 1:
      node->links[random() % node->links.size()].h2d_bytes_per_s *= by;
      break;
    case 2:
      node->numa[random() % node->numa.size()].host_budget_bytes *= by;
      break;
    default:
      node->ranks[random() % node->ranks.size()].gpu_budget_bytes *= by;
  }
}

TEST(NodeSwap, MoreCapacityIsNeverWorse) {
  std::mt19937 random(4);
  int faster = 0;
  for (int i = 0; i < 300; ++i) {
    SwapProblem node = RandomNode(random);
    const NodeSwapResult before = MustPlanSwap(node);
    Raise(&node, random);
    const NodeSwapResult after = MustPlanSwap(node);
    if (!before.feasible || !before.in_time) continue;
    ASSERT_TRUE(after.feasible && after.in_time) << i;
    EXPECT_TRUE(NotWorse(*after.joint, *before.joint)) << i;
    faster += after.joint->step_s < before.joint->step_s * (1 - 1e-6);
  }
  EXPECT_GT(faster, 5);
}

TEST(NodeSwap, OneMoreMatchesSolvingWithOneMoreUnit) {
  std::mt19937 random(5);
  int bought = 0;
  for (int i = 0; i < 60; ++i) {
    const SwapProblem node = RandomNode(random);
    const NodeSwapResult before = MustPlanSwap(node);
    if (!before.feasible || !before.in_time) continue;
    for (const CapacityRow& row : before.rows) {
      SwapProblem more = node;
      if (row.kind == RowKind::kHost) {
        more.numa[row.index].host_budget_bytes += 1024.0 * 1024 * 1024;
      } else if (row.kind == RowKind::kGpu) {
        more.ranks[row.index].gpu_budget_bytes += 1024.0 * 1024 * 1024;
      } else if (row.kind == RowKind::kLinkD2h) {
        more.links[row.index].d2h_bytes_per_s += 1e9;
      } else {
        continue;
      }
      const NodeSwapResult after = MustPlanSwap(more);
      const double step = before.joint->step_s;
      EXPECT_NEAR(step - after.joint->step_s, row.one_more.step_s, 1e-6 * step)
          << i;
      // If the step differs by 1e-9, recomputation may differ by more.
      EXPECT_NEAR(before.joint->recompute_s - after.joint->recompute_s,
                  row.one_more.recompute_s, 1e-5 * step)
          << i;
      bought += row.one_more.recompute_s > 1e-6 * step;
    }
  }
  EXPECT_GT(bought, 20);
}

// ---- Tiny cases, by brute force ---------------------------------------------

TEST(NodeSwap, NoPointOfAGridIsBetter) {
  std::mt19937 random(6);
  for (int i = 0; i < 40; ++i) {
    SwapProblem p;
    p.links = {{"pcie0", 3e9, 3e9, {}}};
    p.numa = {{0, 1e12}};
    p.ranks = {
        {.name = "0",
         .links = {"pcie0"},
         .kinds = {
             {.layers = 4, .forward_layer_s = 1, .backward_layer_s = 2}}}};
    const auto uniform = [&random](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    p.numa[0].host_budget_bytes = uniform(0, 2e10);
    p.ranks[0].gpu_budget_bytes = uniform(0, 1e10);
    p.ranks[0].tensors = {
        {.name = "a", .bytes = uniform(0, 4e9), .recompute_s = uniform(0, 1)},
        {.name = "b", .bytes = uniform(0, 4e9), .recompute_s = uniform(0, 1)}};
    const NodeSwapResult result = MustPlanSwap(p);
    ASSERT_TRUE(result.feasible);
    ASSERT_FALSE(AGridPointIsBetter(p, *result.joint)) << i;
  }
}

// ---- Shared and given fractions ---------------------------------------------

// Makes all ranks' free tensors share one alpha, and forbids keeping them.
SwapProblem WithOneFraction(SwapProblem node) {
  for (SwapProblem::Rank& rank : node.ranks) {
    for (SwapProblem::Tensor& tensor : rank.tensors) {
      if (tensor.must != SwapProblem::Must::kNothing) continue;
      tensor.can_keep = false;
      if (tensor.recompute_s) tensor.shared = "alpha";
    }
  }
  return node;
}

TEST(NodeSwap, TensorsThatAreSharedHaveOneFraction) {
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    const SwapProblem free = RandomNode(random);
    const SwapProblem node = WithOneFraction(free);
    const NodeSwapResult one = MustPlanSwap(node);
    if (!one.feasible || !one.in_time) continue;
    EXPECT_LE(WorstBreach(node, one.ranks), 1e-6);
    double alpha = -1;
    for (size_t r = 0; r < node.ranks.size(); ++r) {
      for (size_t t = 0; t < node.ranks[r].tensors.size(); ++t) {
        const SwapProblem::Tensor& tensor = node.ranks[r].tensors[t];
        if (tensor.must != SwapProblem::Must::kNothing) continue;
        const plan::TokenFractions& f = one.ranks[r].tensors[t];
        EXPECT_EQ(f.keep, 0);
        if (!tensor.recompute_s) continue;
        if (alpha < 0) alpha = f.swap;
        EXPECT_NEAR(f.swap, alpha, 1e-9);
      }
    }
    if (one.memo) {
      EXPECT_TRUE(NotWorse(*one.joint, one.memo->objective)) << i;
    }
    EXPECT_TRUE(NotWorse(*MustPlanSwap(free).joint, *one.joint)) << i;
  }
}

// Returns a node like those of a daemon: jobs of two ranks that share tensor
// t2, some given fractions, some tensors that cannot be kept or are always
// copied, and host limits over any ranks.
SwapProblem RandomJobs(std::mt19937& random) {
  SwapProblem node = RandomNode(random);
  double all = 0;
  for (size_t r = 0; r < node.ranks.size(); ++r) {
    SwapProblem::Rank& rank = node.ranks[r];
    all += rank.host_fixed_bytes;
    for (SwapProblem::Tensor& tensor : rank.tensors) {
      all += tensor.bytes * static_cast<double>(rank.kinds[tensor.kind].layers);
      tensor.traffic_in_fixed = random() % 4 == 0;
      if (tensor.must != SwapProblem::Must::kNothing || !tensor.recompute_s) {
        continue;
      }
      const double given = static_cast<double>(random() % 5) / 4;
      if (tensor.name == "t2") {
        tensor.shared = "t2 of job " + std::to_string(r / 2);
        tensor.can_keep = false;
        continue;
      }
      if (random() % 8 == 0) tensor.given.swap = given;
      if (random() % 8 == 0) tensor.given.keep = 1 - given;
      if (!tensor.given.keep) tensor.can_keep = random() % 2 == 0;
    }
  }
  for (const char* name : {"job", "user"}) {
    const double part = static_cast<double>(10 + random() % 60) / 20;
    node.hosts.push_back({name, part * all});
    for (SwapProblem::Rank& rank : node.ranks) {
      if (random() % 2 == 0) rank.hosts.push_back(name);
    }
  }
  return node;
}

TEST(NodeSwap, NodesOfSeveralJobsMatchGlpk) {
  std::mt19937 random(8);
  int fits = 0, shared = 0;
  for (int i = 0; i < kNodes; ++i) {
    const SwapProblem node = RandomJobs(random);
    const NodeSwapResult result = MustPlanSwap(node);
    const Reference reference = SolveWithGlpk(node);
    ASSERT_EQ(result.feasible && result.in_time, reference.feasible) << i;
    if (!reference.feasible) continue;
    ++fits;
    EXPECT_NEAR(result.joint->step_s, reference.objective.step_s,
                1e-6 * reference.objective.step_s)
        << i;
    if (result.memo) {
      EXPECT_TRUE(NotWorse(*result.joint, result.memo->objective)) << i;
    }
    std::map<std::string, double> first;
    for (size_t r = 0; r < node.ranks.size(); ++r) {
      for (size_t t = 0; t < node.ranks[r].tensors.size(); ++t) {
        const SwapProblem::Tensor& tensor = node.ranks[r].tensors[t];
        if (tensor.must != SwapProblem::Must::kNothing) continue;
        const plan::TokenFractions& f = result.ranks[r].tensors[t];
        EXPECT_NEAR(f.swap, tensor.given.swap.value_or(f.swap), 1e-9);
        EXPECT_NEAR(f.keep, tensor.given.keep.value_or(f.keep), 1e-9);
        EXPECT_LE(f.keep, tensor.can_keep ? 1 : 1e-9);
        if (tensor.shared.empty()) continue;
        const auto [at, added] = first.emplace(tensor.shared, f.swap);
        EXPECT_NEAR(f.swap, at->second, 1e-9);
        shared += !added && f.swap > 0.01 && f.swap < 0.99;
      }
    }
  }
  EXPECT_GT(fits, 300);
  EXPECT_GT(shared, 10);
}

}  // namespace
}  // namespace sluice::planner
