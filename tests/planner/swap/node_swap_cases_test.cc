// The joint LP on nodes that one can work out, and on nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "planner/swap/node_swap.h"
#include "tests/planner/swap/nodes.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;
using RowKind = CapacityRow::Kind;
using ::testing::HasSubstr;

NodeSwapResult MustPlanCase(const SwapProblem& problem,
                            SwapPolicy policy = SwapPolicy::kJoint) {
  auto result = PlanNodeSwap(problem, policy);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : NodeSwapResult{};
}

// One rank: `m` layers of 1 s forward and 2 s backward on a link of 3 GB/s.
SwapProblem OneRank(int64_t layers = 10) {
  SwapProblem p;
  p.links = {{"pcie0", 3e9, 3e9, {}}};
  p.numa = {{0, 1e12}};
  p.ranks = {
      {.name = "0",
       .numa = 0,
       .links = {"pcie0"},
       .kinds = {
           {.layers = layers, .forward_layer_s = 1, .backward_layer_s = 2}}}};
  return p;
}

// ---- Cases one can work out -------------------------------------------------

TEST(NodeSwap, MemosAlphaIsTheSpecialCase) {
  // 1 + 4 a GB in 1 s at 3 GB/s.
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {
      {.name = "x", .bytes = 1e9, .must = SwapProblem::Must::kSwap},
      {.name = "ffn", .bytes = 4e9, .recompute_s = 0.1}};
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.memo);
  EXPECT_NEAR(result.memo->alpha[0], 0.5, 1e-12);
  EXPECT_NEAR(result.joint->step_s, result.memo->objective.step_s, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[1].swap, 0.5, 1e-9);
  EXPECT_NEAR(result.joint->step_s, 30.5, 1e-9);
  EXPECT_NEAR(result.joint->moved_bytes, 2 * 10 * 3e9, 100);
}

TEST(NodeSwap, WhatIsDearToRecomputeIsSwappedFirst) {
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {{.name = "cheap", .bytes = 2e9, .recompute_s = 0.01},
                        {.name = "dear", .bytes = 3e9, .recompute_s = 0.3}};
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_NEAR(result.ranks[0].tensors[0].recompute, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[1].swap, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].added_s, 0.1, 1e-9);
  // MEMO swaps both by 3 of 5 GB.
  EXPECT_NEAR(result.memo->objective.step_s, 30 + 10 * 0.31 * 0.4, 1e-9);
}

TEST(NodeSwap, WhatFitsOnTheGpuIsKeptAndNotMoved) {
  SwapProblem p = OneRank();
  p.ranks[0].gpu_budget_bytes = 2e10;
  p.ranks[0].tensors = {{.name = "a", .bytes = 4e9, .recompute_s = 0.4}};
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_NEAR(result.ranks[0].tensors[0].keep, 0.5, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[0].swap, 0.5, 1e-9);
  EXPECT_EQ(result.joint->recompute_s, 0);
}

TEST(NodeSwap, TheSlowestRankGetsTheSharedLink) {
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {{.name = "a", .bytes = 3e9, .recompute_s = 0.4}};
  p.ranks.push_back(p.ranks[0]);
  p.ranks[1].name = "1";
  p.ranks[1].kinds[0].forward_layer_s =
      1.5;  // 5 s behind: rank 0's 4 s are for nothing
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_NEAR(result.joint->step_s, 35, 1e-9);
  EXPECT_NEAR(result.ranks[1].added_s, 0, 1e-9);
  EXPECT_TRUE(result.ranks[1].slowest);
  EXPECT_FALSE(result.ranks[0].slowest);
}

TEST(NodeSwap, FixedTrafficAndTheTotalOfALinkCount) {
  SwapProblem p = OneRank();
  p.links[0].total_bytes_per_s = 4e9;
  p.ranks[0].kinds[0].forward_h2d_fixed_bytes = 3e9;
  p.ranks[0].tensors = {{.name = "a", .bytes = 4e9, .recompute_s = 0.4}};
  const NodeSwapResult result = MustPlanCase(p);
  // Forward: d + 3 GB within 4 GB.
  EXPECT_NEAR(result.ranks[0].tensors[0].swap, 0.25, 1e-9);
  for (const CapacityRow& row : result.rows) {
    EXPECT_EQ(row.binds, row.kind == RowKind::kLinkTotal ||
                             row.kind == RowKind::kLinkH2d ||
                             row.kind == RowKind::kGpu)
        << static_cast<int>(row.kind);
  }
}

TEST(NodeSwap, WhatDoesNotFitIsNamedWithItsLeastExcess) {
  SwapProblem p = OneRank();
  p.numa[0].host_budget_bytes = 4e10;
  p.ranks[0].tensors = {
      {.name = "x", .bytes = 6e9, .must = SwapProblem::Must::kSwap}};
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_FALSE(result.feasible);
  EXPECT_FALSE(result.joint);
  EXPECT_FALSE(result.memo);
  EXPECT_THAT(result.no_memo, HasSubstr("rank '0' needs 6e+09"));
  ASSERT_EQ(result.rows.size(), 4u);
  EXPECT_NEAR(result.rows[0].excess, 1, 1e-9);    // 6 of 3 GB/s out
  EXPECT_NEAR(result.rows[1].excess, 0, 1e-9);    // 3 of 3 GB/s in
  EXPECT_NEAR(result.rows[2].excess, 0.5, 1e-9);  // 60 of 40 GB
  EXPECT_NEAR(result.rows[2].used, 6e10, 1);
  EXPECT_NEAR(result.rows[3].excess, 0, 1e-9);
}

TEST(NodeSwap, ALinkThatIsTooSlowMakesTheStepLongerAndRefusesNothing) {
  // 6 GB out in 1 s and in again in 2 s, at 3 GB/s: a second more forward.
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {
      {.name = "x", .bytes = 6e9, .must = SwapProblem::Must::kSwap},
      {.name = "ffn", .bytes = 4e9, .recompute_s = 0.1}};
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.feasible);
  EXPECT_FALSE(result.in_time);
  // Nothing is added to those copies.
  EXPECT_NEAR(result.ranks[0].tensors[1].recompute, 1, 1e-9);
  EXPECT_NEAR(result.joint->step_s, 10 * (3 + 0.1), 1e-9);
  EXPECT_NEAR(result.ranks[0].stall_s, 10, 1e-6);
  EXPECT_NEAR(result.stall_s, 10, 1e-6);
  EXPECT_NEAR(result.rows[0].excess, 1, 1e-9);
  EXPECT_EQ(result.rows[1].excess, 0);
  // With 1 GB/s more they take 1.5 s.
  EXPECT_NEAR(result.rows[0].one_more.step_s, 5, 1e-6);
}

TEST(NodeSwap, RanksOnAnOverloadedLinkWaitEachForItsPart) {
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {
      {.name = "x", .bytes = 3e9, .must = SwapProblem::Must::kSwap}};
  p.ranks.push_back(p.ranks[0]);
  p.ranks[1].name = "1";
  p.ranks[1].kinds[0].forward_layer_s = 2;  // half the rate
  p.ranks[1].kinds[0].backward_layer_s = 4;
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.feasible);
  // Out: 3 + 1.5 of 3 GB/s, so forward takes half longer.
  EXPECT_NEAR(result.ranks[0].stall_s, 10 * 0.5, 1e-6);
  EXPECT_NEAR(result.ranks[1].stall_s, 10 * 1.0, 1e-6);
  EXPECT_NEAR(result.stall_s, 10, 1e-6);
  // What has a window as long as its copies take hides them.
  p.ranks[1].kinds[0].resident_layers = 10;
  EXPECT_EQ(MustPlanCase(p).ranks[1].stall_s, 0);
}

// 24 GB of every layer take 2 s to recompute, and a second of the link.
SwapProblem DearToRecompute() {
  using Must = SwapProblem::Must;
  SwapProblem p;
  p.links = {{"pcie0", 25e9, 25e9, 40e9}, {"switch0", 50e9, 50e9, {}}};
  p.numa = {{0, 1e12}};
  p.ranks = {
      {.name = "0",
       .links = {"pcie0", "switch0"},
       .host_fixed_bytes = 1e10,
       .kinds = {{.layers = 32,
                  .resident_layers = 2,
                  .forward_layer_s = 0.9,
                  .backward_layer_s = 2,
                  .forward_d2h_fixed_bytes = 1e8,
                  .forward_h2d_fixed_bytes = 4e9,
                  .backward_d2h_fixed_bytes = 2e9,
                  .backward_h2d_fixed_bytes = 5e9}},
       .tensors = {{.name = "layer_input", .bytes = 1e9, .must = Must::kSwap},
                   {.name = "attention_output", .bytes = 1e9},
                   {.name = "ffn_norm", .bytes = 1e9, .recompute_s = 0.005},
                   {.name = "ffn_up", .bytes = 24e9, .recompute_s = 2}}}};
  return p;
}

TEST(NodeSwap, CopiesShowWhereTheyTakeLessThanToRecompute) {
  const SwapProblem p = DearToRecompute();
  EXPECT_NEAR(MustPlanCase(p, SwapPolicy::kHidden).joint->step_s, 101.95, 1e-6);
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.feasible);
  EXPECT_FALSE(result.in_time);
  EXPECT_NEAR(*result.hidden_step_s, 101.95, 1e-6);
  // All swapped but ffn_norm: 26.1 GB out in 0.9 s.
  EXPECT_NEAR(result.ranks[0].tensors[2].recompute, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[3].swap, 1, 1e-9);
  EXPECT_NEAR(result.joint->step_s, 92.8 + 30 * 0.005, 1e-6);
  EXPECT_NEAR(result.stall_s, 30 * (26.1 / 25 - 0.9), 1e-6);
  EXPECT_LE(result.joint->step_s + result.stall_s, 98.3);
  // With 1 GB/s more out the copies take 26.1 / 26 s.
  EXPECT_NEAR(result.rows[0].one_more.step_s, 30 * (26.1 / 25 - 26.1 / 26),
              1e-6);
}

TEST(NodeSwap, RanksOfOneLinkStallAsOneRankWithItsPart) {
  SwapProblem p = DearToRecompute();
  const NodeSwapResult one = MustPlanCase(p);
  p.ranks.push_back(p.ranks[0]);
  p.ranks[1].name = "1";
  p.links[0] = {"pcie0", 50e9, 50e9, 80e9};
  p.links[1] = {"switch0", 100e9, 100e9, {}};
  p.numa[0].host_budget_bytes *= 2;
  const NodeSwapResult two = MustPlanCase(p);
  for (const RankSwap& rank : two.ranks) {
    EXPECT_NEAR(rank.step_s + rank.stall_s, one.joint->step_s + one.stall_s,
                1e-6);
  }
}

TEST(NodeSwap, ALayerThatStaysCostsNoMemoryButItsWindow) {
  SwapProblem p = OneRank();
  p.ranks[0].kinds[0].resident_layers = 10;
  p.ranks[0].tensors = {{.name = "a", .bytes = 4e9, .recompute_s = 0.4}};
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_EQ(result.joint->recompute_s, 0);
  EXPECT_EQ(result.joint->moved_bytes, 0);
}

// ---- Bad input --------------------------------------------------------------

std::string Complaint(const SwapProblem& problem) {
  return std::string(PlanNodeSwap(problem).status().message());
}

TEST(NodeSwap, NonsenseIsRefusedWithItsPath) {
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {{.name = "a", .bytes = 1}, {.name = "b", .bytes = -1}};
  EXPECT_EQ(Complaint(p), "ranks[0].tensors[1].bytes: -1 is negative");
  p.ranks[0].tensors[1] = {.name = "a", .bytes = 1};
  EXPECT_EQ(Complaint(p), "ranks[0].tensors[1].name: 'a' occurs twice");
  p.ranks[0].tensors[1] = {.name = "b", .bytes = std::nan("")};
  EXPECT_EQ(Complaint(p), "ranks[0].tensors[1].bytes: is not a number");
  p.ranks[0].tensors[1] = {.name = "b", .must = SwapProblem::Must::kRecompute};
  EXPECT_THAT(Complaint(p), HasSubstr("ranks[0].tensors[1].must: 'recompute'"));
  p.ranks[0].tensors.clear();
  p.ranks[0].links.push_back("pcie9");
  EXPECT_EQ(Complaint(p), "ranks[0].links[1]: there is no link 'pcie9'");
  p.ranks[0].links.pop_back();
  p.ranks[0].kinds[0].forward_layer_s = 0;
  EXPECT_EQ(Complaint(p), "ranks[0].forward_layer_s: is 0: it must be above");
  p.ranks[0].kinds[0].forward_layer_s = 1;
  p.ranks[0].tensors = {{.name = "a", .kind = 1, .bytes = 1}};
  EXPECT_EQ(Complaint(p), "ranks[0].tensors[0].kind: there is no kind 1 of 1");
  p.ranks[0].kinds.push_back({.name = "moe", .layers = 1});
  EXPECT_EQ(Complaint(p),
            "ranks[0].kinds[1].forward_layer_s: is 0: it must be above");
  p.ranks[0].kinds[1].forward_layer_s = 1;
  EXPECT_EQ(Complaint(p),
            "ranks[0].kinds[1].backward_layer_s: is 0: it must be above");
  p.ranks[0].tensors.clear();  // nothing for a backward: layers are frozen
  EXPECT_EQ(Complaint(p), "");
  p.ranks[0].kinds[1].name = p.ranks[0].kinds[0].name;
  EXPECT_EQ(Complaint(p), "ranks[0].kinds[1].name: 'layer' occurs twice");
  p.ranks[0].kinds.clear();
  EXPECT_EQ(Complaint(p), "ranks[0].kinds: there is none");
  p = OneRank();
  p.ranks[0].numa = 4;
  EXPECT_EQ(Complaint(p), "ranks[0].numa: there is no NUMA node 4");
  p.ranks.clear();
  EXPECT_EQ(Complaint(p), "ranks: there is none");
}

}  // namespace
}  // namespace sluice::planner
