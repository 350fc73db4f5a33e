// Small nodes for the tests of PlanNode.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "planner/planner.h"
#include "proto/plan/validate.h"

namespace sluice::planner {

// Returns a profile of 10 layers, each of 1 s forward and 2 s backward. Its two
// classes have 1 and 4 MB per layer. If a fraction alpha of the second class is
// swapped, the rank holds (10 + 40 alpha) MB on the host and copies (1 + 4
// alpha) MB per layer.
inline plan::RankProfile SampleProfile(uint64_t rank) {
  plan::RankProfile p;
  p.rank = Rank(rank);
  p.kinds[0].layers = 10;
  p.classes = {{.name = "layer_input",
                .bytes_per_layer = Bytes(1'000'000),
                .must_swap = true},
               {.name = "ffn_up",
                .bytes_per_layer = Bytes(4'000'000),
                .recompute_seconds = 0.01}};
  p.kinds[0].forward_layer_seconds = 1;
  p.kinds[0].backward_layer_seconds = 2;
  return p;
}

inline NodeResources Resources(double bytes_per_second, Bytes budget,
                               size_t ranks = 1) {
  NodeResources resources;
  resources.links.push_back({"pcie0", bytes_per_second, bytes_per_second, {}});
  resources.hosts.push_back({"host of NUMA node 0", budget, {}});
  for (size_t r = 0; r < ranks; ++r) {
    resources.links[0].profiles.push_back(r);
    resources.hosts[0].profiles.push_back(r);
  }
  return resources;
}

inline plan::NodePlan MustPlan(const std::vector<plan::RankProfile>& profiles,
                               const NodeResources& resources) {
  auto plan = PlanNode(profiles, resources, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const absl::Status valid = plan::ValidateNodePlan(profiles, resources, *plan);
  EXPECT_TRUE(valid.ok()) << valid;
  return *std::move(plan);
}

inline plan::RankPlan PlanOne(const plan::RankProfile& profile,
                              const NodeResources& resources) {
  const plan::NodePlan plan = MustPlan({profile}, resources);
  EXPECT_EQ(plan.infeasible, "");
  return plan.ranks.empty() ? plan::RankPlan{} : plan.ranks[0];
}

inline constexpr Bytes kPlenty(1'000'000'000);
inline constexpr double kFast = 1e12;

}  // namespace sluice::planner
