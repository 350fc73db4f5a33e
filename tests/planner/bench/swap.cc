// Swap plans.
#include <fmt/format.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "proto/base/status.h"
#include "tests/planner/bench/bench.h"

namespace sluice::planner {

// 8 ranks of 12 classes over shared links: alpha's LP alone.
void BenchSwap(BenchReport& report) {
  std::mt19937 random(21);
  std::vector<plan::RankProfile> profiles;
  NodeResources resources;
  resources.links.push_back({"switch0", 50e9, 50e9, {}});
  for (uint64_t r = 0; r < 8; ++r) {
    plan::RankProfile p;
    p.rank = Rank(r);
    p.layers = 32;
    p.forward_layer_seconds = 0.9 + 0.01 * static_cast<double>(r);
    p.backward_layer_seconds = 2;
    for (int c = 0; c < 12; ++c) {
      p.classes.push_back(
          {.name = fmt::format("class{}", c),
           .bytes_per_layer = Bytes(int64_t{1} << (26 + random() % 5)),
           .recompute_seconds = 0.01,
           .must_swap = c < 2});
    }
    resources.links[0].ranks.push_back(p.rank);
    resources.links.push_back({fmt::format("pcie{}", r), 25e9, 25e9, {p.rank}});
    profiles.push_back(p);
  }
  resources.host_budget = {GiB(1024)};
  std::vector<double> seconds;
  std::string limit;
  for (int k = 0; k < 9; ++k) {
    const auto start = std::chrono::steady_clock::now();
    const auto plan = PlanNode(profiles, resources, {});
    seconds.push_back(SecondsSince(start) * 1e3);
    SLUICE_CHECK_OK(plan.status());
    limit = fmt::format("alpha {:.4f}, limited by {}", plan->ranks[0].alpha,
                        plan->ranks[0].alpha_limited_by);
  }
  report.Add({"alpha_8_ranks_12_classes", bench::Quantile(seconds, 0.5), "ms",
              50, true, limit + ", median of 9"});
}

}  // namespace sluice::planner
