// Measures swap plans against the targets of planner/swap/README.md.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <random>
#include <vector>

#include "planner/swap/node_swap.h"
#include "proto/base/status.h"
#include "tests/planner/bench/bench.h"
#include "tests/planner/swap/nodes.h"

namespace sluice::planner {
namespace {

constexpr int kNodes = 1000;

NodeSwapResult MustPlan(const NodeSwapProblem& node, SwapPolicy policy) {
  auto result = PlanNodeSwap(node, policy);
  SLUICE_CHECK_OK(result.status());
  return *std::move(result);
}

// Returns the plan's largest excess over a capacity, as a part of the capacity.
double Breach(const NodeSwapResult& result) {
  double worst = 0;
  for (const CapacityRow& row : result.rows) {
    const double unit = row.capacity > 0 ? row.capacity : 1e9;
    worst = std::max(worst, (row.used - row.capacity) / unit);
  }
  return worst;
}

// Returns how much worse `joint` is than `memo`, as a ratio, in the first
// objective in which they differ.
double Behind(const SwapObjective& joint, const SwapObjective& memo) {
  const double step = joint.step_s / memo.step_s - 1;
  if (std::fabs(step) > 1e-11) return step;
  const double scale = memo.step_s;
  const double recompute = (joint.recompute_s - memo.recompute_s) / scale;
  if (std::fabs(recompute) > 1e-11) return recompute;
  return (joint.moved_bytes - memo.moved_bytes) /
         std::max(memo.moved_bytes, 1.0);
}

void RandomNodes(BenchReport& report) {
  std::mt19937 random(22);
  double breach = 0, behind = -1, off = 0;
  int feasible = 0, disagree = 0, memos = 0;
  for (int i = 0; i < kNodes; ++i) {
    const NodeSwapProblem node = RandomNode(random);
    const NodeSwapResult ours = MustPlan(node, SwapPolicy::kHidden);
    const Reference theirs = SolveWithGlpk(node);
    const bool in_time = ours.feasible && ours.in_time;
    disagree += in_time != theirs.feasible;
    if (!in_time || !theirs.feasible) continue;
    ++feasible;
    breach = std::max(breach, Breach(ours));
    const double step = theirs.objective.step_s;
    off = std::max(off, std::fabs(ours.joint->step_s - step) / step);
    if (!ours.memo) continue;
    ++memos;
    behind = std::max(behind, Behind(*ours.joint, ours.memo->objective));
  }
  const std::string of = fmt::format("{} nodes, {} feasible", kNodes, feasible);
  report.Add({"swap_rows_broken_by", breach, "of capacity", 1e-6, true, of});
  report.Add({"swap_step_off_glpk", off, "relative", 1e-6, true, of});
  report.Add({"swap_feasible_unlike_glpk", static_cast<double>(disagree),
              "nodes", 0, true, of});
  report.Add({"swap_worst_behind_memo", behind, "relative", 1e-11, true,
              fmt::format("{} with a MEMO plan", memos)});
}

}  // namespace

void BenchSwap(BenchReport& report) {
  const NodeSwapProblem node = BusyNode(8, 12);
  std::vector<double> milliseconds;
  for (int k = 0; k < 9; ++k) {
    const auto start = std::chrono::steady_clock::now();
    SLUICE_CHECK(MustPlan(node, SwapPolicy::kJoint).feasible);
    milliseconds.push_back(SecondsSince(start) * 1e3);
  }
  report.Add({"swap_8_ranks_12_tensors", bench::Quantile(milliseconds, 0.5),
              "ms", 50, true,
              fmt::format("median of 9, slowest {:.1f}; with every `one more`",
                          bench::Quantile(milliseconds, 1))});
  const NodeSwapProblem large = BusyNode(128, 60);
  const std::clock_t start = std::clock();
  SLUICE_CHECK(MustPlan(large, SwapPolicy::kJoint).feasible);
  report.Add({"swap_128_ranks_60_tensors",
              static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, "s",
              2, true, "CPU time, with every `one more`"});
  RandomNodes(report);
}

}  // namespace sluice::planner
