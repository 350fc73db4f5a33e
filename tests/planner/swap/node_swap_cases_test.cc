// Tests the joint LP on nodes that can be computed by hand, and on invalid
// input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

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

// Returns a node with one rank: layers of 1 s forward and 2 s backward, on a
// link of 3 GB/s.
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

// ---- Cases computed by hand -------------------------------------------------

TEST(NodeSwap, WithOneFreeTensorTheJointPlanEqualsMemos) {
  // Forward copies (1 + 4 alpha) GB in 1 s at 3 GB/s.
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

TEST(NodeSwap, ATensorThatIsCostlyToRecomputeIsSwappedFirst) {
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {{.name = "cheap", .bytes = 2e9, .recompute_s = 0.01},
                        {.name = "dear", .bytes = 3e9, .recompute_s = 0.3}};
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_NEAR(result.ranks[0].tensors[0].recompute, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[1].swap, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].added_s, 0.1, 1e-9);
  // MEMO swaps 3/5 of both tensors.
  EXPECT_NEAR(result.memo->objective.step_s, 30 + 10 * 0.31 * 0.4, 1e-9);
}

TEST(NodeSwap, RowsThatFitOnTheGpuAreKeptAndNotMoved) {
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
      1.5;  // 5 s longer per step; rank 0's recomputation takes up to 4 s
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_NEAR(result.joint->step_s, 35, 1e-9);
  EXPECT_NEAR(result.ranks[1].added_s, 0, 1e-9);
  EXPECT_TRUE(result.ranks[1].slowest);
  EXPECT_FALSE(result.ranks[0].slowest);
}

TEST(NodeSwap, FixedTrafficAndALinksTotalRateLimitTheSwap) {
  SwapProblem p = OneRank();
  p.links[0].total_bytes_per_s = 4e9;
  p.ranks[0].kinds[0].forward_h2d_fixed_bytes = 3e9;
  p.ranks[0].tensors = {{.name = "a", .bytes = 4e9, .recompute_s = 0.4}};
  const NodeSwapResult result = MustPlanCase(p);
  // Forward copies (4 swap + 3) GB in 1 s at 4 GB/s.
  EXPECT_NEAR(result.ranks[0].tensors[0].swap, 0.25, 1e-9);
  for (const CapacityRow& row : result.rows) {
    EXPECT_EQ(row.binds, row.kind == RowKind::kLinkTotal ||
                             row.kind == RowKind::kLinkH2d ||
                             row.kind == RowKind::kGpu)
        << static_cast<int>(row.kind);
  }
}

TEST(NodeSwap, LimitsThatAreExceededAreNamedWithTheirLeastExcess) {
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
  EXPECT_NEAR(result.rows[0].excess, 1, 1e-9);    // out: needs 6 GB/s, has 3
  EXPECT_NEAR(result.rows[1].excess, 0, 1e-9);    // in: needs 3 GB/s, has 3
  EXPECT_NEAR(result.rows[2].excess, 0.5, 1e-9);  // needs 60 GB, has 40
  EXPECT_NEAR(result.rows[2].used, 6e10, 1);
  EXPECT_NEAR(result.rows[3].excess, 0, 1e-9);
}

TEST(NodeSwap, ALinkThatIsTooSlowMakesTheStepLongerButNotInfeasible) {
  // At 3 GB/s, 6 GB are copied out during 1 s of forward, and back during 2 s
  // of backward, so forward takes a second more.
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {
      {.name = "x", .bytes = 6e9, .must = SwapProblem::Must::kSwap},
      {.name = "ffn", .bytes = 4e9, .recompute_s = 0.1}};
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.feasible);
  EXPECT_FALSE(result.in_time);
  // No other bytes are copied.
  EXPECT_NEAR(result.ranks[0].tensors[1].recompute, 1, 1e-9);
  EXPECT_NEAR(result.joint->step_s, 10 * (3 + 0.1), 1e-9);
  EXPECT_NEAR(result.ranks[0].stall_s, 10, 1e-6);
  EXPECT_NEAR(result.stall_s, 10, 1e-6);
  EXPECT_NEAR(result.rows[0].excess, 1, 1e-9);
  EXPECT_EQ(result.rows[1].excess, 0);
  // With 1 GB/s more the copies take 1.5 s.
  EXPECT_NEAR(result.rows[0].one_more.step_s, 5, 1e-6);
}

TEST(NodeSwap, EachRankOnAnOverloadedLinkWaitsForItsShare) {
  SwapProblem p = OneRank();
  p.ranks[0].tensors = {
      {.name = "x", .bytes = 3e9, .must = SwapProblem::Must::kSwap}};
  p.ranks.push_back(p.ranks[0]);
  p.ranks[1].name = "1";
  p.ranks[1].kinds[0].forward_layer_s = 2;  // half the rate
  p.ranks[1].kinds[0].backward_layer_s = 4;
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.feasible);
  // The ranks copy out (3 + 1.5) GB/s and the link has 3, so forward takes 1.5
  // times as long.
  EXPECT_NEAR(result.ranks[0].stall_s, 10 * 0.5, 1e-6);
  EXPECT_NEAR(result.ranks[1].stall_s, 10 * 1.0, 1e-6);
  EXPECT_NEAR(result.stall_s, 10, 1e-6);
  // A rank with only resident layers has nothing to wait for.
  p.ranks[1].kinds[0].resident_layers = 10;
  EXPECT_EQ(MustPlanCase(p).ranks[1].stall_s, 0);
}

// Returns a node with one rank. 24 GB per layer take 2 s to recompute, and
// about a second to copy.
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

TEST(NodeSwap, CopiesAreExposedWhereTheyTakeLessThanRecomputation) {
  const SwapProblem p = DearToRecompute();
  EXPECT_NEAR(MustPlanCase(p, SwapPolicy::kHidden).joint->step_s, 101.95, 1e-6);
  const NodeSwapResult result = MustPlanCase(p);
  ASSERT_TRUE(result.feasible);
  EXPECT_FALSE(result.in_time);
  EXPECT_NEAR(*result.hidden_step_s, 101.95, 1e-6);
  // All but ffn_norm is swapped: forward takes 0.9 s and copies out 26.1 GB.
  EXPECT_NEAR(result.ranks[0].tensors[2].recompute, 1, 1e-9);
  EXPECT_NEAR(result.ranks[0].tensors[3].swap, 1, 1e-9);
  EXPECT_NEAR(result.joint->step_s, 92.8 + 30 * 0.005, 1e-6);
  EXPECT_NEAR(result.stall_s, 30 * (26.1 / 25 - 0.9), 1e-6);
  EXPECT_LE(result.joint->step_s + result.stall_s, 98.3);
  // If the link copies out 1 GB/s more, the copies take 26.1 / 26 s.
  EXPECT_NEAR(result.rows[0].one_more.step_s, 30 * (26.1 / 25 - 26.1 / 26),
              1e-6);
}

TEST(NodeSwap, TwoRanksOnTwiceTheLinkStallLikeOneRank) {
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

TEST(NodeSwap, ResidentLayersNeedNoCopiesAndNoRecomputation) {
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

// The limit holds 20 of 40 GB. One more GiB saves the recomputation of a GiB.
TEST(NodeSwap, OneMoreGibibyteOfAHostLimitIsWorthItsRecomputation) {
  SwapProblem p = OneRank();
  p.hosts = {{"job", 20e9}, {"other", 1}};
  p.ranks[0].hosts = {"job"};
  p.ranks[0].tensors = {{.name = "ffn", .bytes = 4e9, .recompute_s = 0.1}};
  const NodeSwapResult result = MustPlanCase(p);
  EXPECT_NEAR(result.ranks[0].tensors[0].swap, 0.5, 1e-9);
  const auto row =
      std::ranges::find(result.rows, RowKind::kLimit, &CapacityRow::kind);
  ASSERT_NE(row, result.rows.end());
  EXPECT_EQ(row->index, 0);
  EXPECT_NEAR(row->used, 20e9, 100);
  EXPECT_TRUE(row->binds);
  EXPECT_NEAR(row->one_more.step_s, 10 * 0.1 * 1.073741824 / 40, 1e-9);
}

// Returns the field that is refused after `change` of a valid node, or "".
std::string RefusedField(const std::function<void(SwapProblem&)>& change) {
  SwapProblem p = OneRank();
  p.numa.push_back({1, 1e12});
  p.hosts = {{"job", 1e12}, {"user", 1e12}};
  p.ranks[0].hosts = {"job"};
  p.ranks[0].tensors = {
      {.name = "a", .bytes = 1, .recompute_s = 0.1, .shared = "s"}};
  p.ranks.push_back(p.ranks[0]);
  p.ranks[1].name = "1";
  EXPECT_EQ(CheckNodeSwap(p), absl::OkStatus());
  change(p);
  const absl::Status status = CheckNodeSwap(p);
  EXPECT_EQ(absl::IsInvalidArgument(status), !status.ok());
  const std::string message(status.message());
  return message.substr(0, message.find(": "));
}

std::string RefusedOfRank(
    const std::function<void(SwapProblem::Rank&)>& change) {
  const std::string path = RefusedField([&](auto& p) { change(p.ranks[1]); });
  return path.starts_with("ranks[1].") ? path.substr(9) : path;
}

std::string RefusedOfTensor(
    const std::function<void(SwapProblem::Tensor&)>& change) {
  const std::string path =
      RefusedOfRank([&](auto& rank) { change(rank.tensors[0]); });
  return path.starts_with("tensors[0].") ? path.substr(11) : path;
}

TEST(NodeSwap, LinksAndMemoryAreRefusedBeyondTheirLimits) {
  EXPECT_EQ(RefusedField([](auto& p) { p.links.push_back(p.links[0]); }),
            "links[1].name");
  EXPECT_EQ(RefusedField([](auto& p) { p.links[0].h2d_bytes_per_s = 0; }),
            "links[0].h2d_bytes_per_s");
  EXPECT_EQ(RefusedField([](auto& p) { p.links[0].d2h_bytes_per_s = 0; }),
            "links[0].d2h_bytes_per_s");
  EXPECT_EQ(RefusedField([](auto& p) { p.links[0].total_bytes_per_s = 0; }),
            "links[0].total_bytes_per_s");
  EXPECT_EQ(RefusedField([](auto& p) { p.numa[1].id = -1; }), "numa[1].id");
  EXPECT_EQ(RefusedField([](auto& p) { p.numa[1].id = 0; }), "numa[1].id");
  const auto numa = [](double bytes) {
    return RefusedField([&](auto& p) { p.numa[1].host_budget_bytes = bytes; });
  };
  EXPECT_EQ(numa(-1), "numa[1].host_budget_bytes");
  EXPECT_EQ(numa(0), "");
  EXPECT_EQ(RefusedField([](auto& p) { p.hosts[1].name = ""; }),
            "hosts[1].name");
  EXPECT_EQ(RefusedField([](auto& p) { p.hosts[1].name = "job"; }),
            "hosts[1].name");
  const auto host = [](double bytes) {
    return RefusedField([&](auto& p) { p.hosts[1].budget_bytes = bytes; });
  };
  EXPECT_EQ(host(-1), "hosts[1].budget_bytes");
  EXPECT_EQ(host(0), "");
  EXPECT_EQ(host(1e18), "");
  EXPECT_EQ(host(1.001e18), "hosts[1].budget_bytes");
}

TEST(NodeSwap, RanksAreRefusedBeyondTheirLimits) {
  EXPECT_EQ(RefusedOfRank([](auto& r) { r.name = "0"; }), "name");
  EXPECT_EQ(RefusedOfRank([](auto& r) { r.links.push_back("pcie0"); }),
            "links[1]");
  EXPECT_EQ(RefusedOfRank([](auto& r) { r.hosts = {"nowhere"}; }), "hosts[0]");
  EXPECT_EQ(RefusedOfRank([](auto& r) {
              r.hosts = {"job", "job"};
            }),
            "hosts[1]");
  EXPECT_EQ(RefusedOfRank([](auto& r) { r.hosts = {"job", "user"}; }), "");
  EXPECT_EQ(RefusedOfRank([](auto& r) { r.gpu_budget_bytes = -1; }),
            "gpu_budget_bytes");
  EXPECT_EQ(RefusedOfRank([](auto& r) { r.host_fixed_bytes = -1; }),
            "host_fixed_bytes");
  const auto layers = [](int64_t layers, int64_t resident) {
    return RefusedOfRank([&](auto& r) {
      r.kinds[0].layers = layers;
      r.kinds[0].resident_layers = resident;
    });
  };
  EXPECT_EQ(layers(0, 0), "layers");
  EXPECT_EQ(layers(1, 0), "");
  EXPECT_EQ(layers(1'000'000, 0), "");
  EXPECT_EQ(layers(1'000'001, 0), "layers");
  EXPECT_EQ(layers(10, -1), "resident_layers");
  EXPECT_EQ(layers(10, 10), "");
  EXPECT_EQ(layers(10, 11), "resident_layers");
  const std::pair<const char*, double SwapProblem::Kind::*> kFixed[] = {
      {"forward_d2h_fixed_bytes", &SwapProblem::Kind::forward_d2h_fixed_bytes},
      {"forward_h2d_fixed_bytes", &SwapProblem::Kind::forward_h2d_fixed_bytes},
      {"backward_d2h_fixed_bytes",
       &SwapProblem::Kind::backward_d2h_fixed_bytes},
      {"backward_h2d_fixed_bytes",
       &SwapProblem::Kind::backward_h2d_fixed_bytes}};
  for (const auto& each : kFixed) {
    const auto field = each.second;
    EXPECT_EQ(RefusedOfRank([&](auto& r) { r.kinds[0].*field = -1; }),
              each.first);
  }
}

TEST(NodeSwap, TensorsAreRefusedBeyondTheirLimits) {
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.name = ""; }), "name");
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.recompute_s = -1; }),
            "recompute_s");
  struct Case {
    plan::GivenFractions given;
    bool can_keep;
    bool can_recompute;
    const char* refused;
  };
  const std::optional<double> open;
  const Case cases[] = {{{1, 0}, true, true, ""},
                        {{0, 1}, true, true, ""},
                        {{1.01, open}, true, true, "keep"},
                        {{-0.01, open}, true, true, "keep"},
                        {{open, 1.01}, true, true, "swap"},
                        {{open, std::nan("")}, true, true, "swap"},
                        {{0.5, open}, false, true, "keep"},
                        {{0, open}, false, true, ""},
                        {{0.5, 0.5}, true, true, ""},
                        {{0.5, 0.6}, true, true, "swap"},
                        {{0.25, 0.5}, true, true, ""},
                        // A quarter could be neither kept nor recomputed.
                        {{0.25, 0.5}, true, false, "swap"},
                        {{0.5, 0.5}, true, false, ""},
                        {{open, 0.5}, true, false, ""},
                        {{open, 0.5}, false, false, "swap"}};
  for (const Case& each : cases) {
    EXPECT_EQ(RefusedOfTensor([&](auto& t) {
                t.given = each.given;
                t.can_keep = each.can_keep;
                if (!each.can_recompute) t.recompute_s.reset();
                t.shared = "";
              }),
              each.refused)
        << &each - cases;
  }
}

TEST(NodeSwap, SharedTensorsMustBeAlike) {
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.must = SwapProblem::Must::kSwap; }),
            "shared");
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.given.swap = 0.5; }), "shared");
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.can_keep = false; }), "shared");
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.recompute_s.reset(); }), "shared");
  EXPECT_EQ(RefusedOfTensor([](auto& t) { t.recompute_s = 0.2; }), "");
  EXPECT_EQ(RefusedOfTensor([](auto& t) {
              t.can_keep = false;
              t.shared = "t";
            }),
            "");
}

TEST(NodeSwap, EveryNumberBelowItsMinimumIsRefused) {
  using Change = void (*)(SwapProblem&);
  const std::pair<const char*, Change> changes[] = {
      {"links[0].h2d_bytes_per_s",
       [](SwapProblem& p) { p.links[0].h2d_bytes_per_s = 0; }},
      {"links[0].d2h_bytes_per_s",
       [](SwapProblem& p) { p.links[0].d2h_bytes_per_s = 0; }},
      {"links[0].total_bytes_per_s",
       [](SwapProblem& p) { p.links[0].total_bytes_per_s = 0; }},
      {"numa[0].id", [](SwapProblem& p) { p.numa[0].id = -1; }},
      {"numa[0].host_budget_bytes",
       [](SwapProblem& p) { p.numa[0].host_budget_bytes = -1; }},
      {"hosts[0].budget_bytes",
       [](SwapProblem& p) { p.hosts[0].budget_bytes = -1; }},
      {"ranks[0].gpu_budget_bytes",
       [](SwapProblem& p) { p.ranks[0].gpu_budget_bytes = -1; }},
      {"ranks[0].tensors[0].recompute_s",
       [](SwapProblem& p) { p.ranks[0].tensors[0].recompute_s = -1; }},
      {"layers", [](SwapProblem& p) { p.ranks[0].kinds[0].layers = 0; }},
      {"resident_layers",
       [](SwapProblem& p) { p.ranks[0].kinds[0].resident_layers = -1; }},
      {"forward_layer_s",
       [](SwapProblem& p) { p.ranks[0].kinds[0].forward_layer_s = 0; }},
      {"forward_d2h_fixed_bytes",
       [](SwapProblem& p) {
         p.ranks[0].kinds[0].forward_d2h_fixed_bytes = -1;
       }},
      {"backward_h2d_fixed_bytes", [](SwapProblem& p) {
         p.ranks[0].kinds[0].backward_h2d_fixed_bytes = -1;
       }}};
  for (const auto& [path, change] : changes) {
    SwapProblem p = OneRank();
    p.hosts = {{"job", 1e9}};
    p.ranks[0].tensors = {{.name = "a", .bytes = 1, .recompute_s = 1}};
    ASSERT_EQ(Complaint(p), "");
    change(p);
    EXPECT_THAT(Complaint(p), HasSubstr(std::string(path) + ": ")) << path;
  }
}

TEST(NodeSwap, InvalidFieldsAreRefusedAndTheirPathIsNamed) {
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
  EXPECT_EQ(Complaint(p),
            "ranks[0].forward_layer_s: is 0: it must be positive");
  p.ranks[0].kinds[0].forward_layer_s = 1;
  p.ranks[0].tensors = {{.name = "a", .kind = 1, .bytes = 1}};
  EXPECT_EQ(Complaint(p), "ranks[0].tensors[0].kind: there is no kind 1 of 1");
  p.ranks[0].kinds.push_back({.name = "moe", .layers = 1});
  EXPECT_EQ(Complaint(p),
            "ranks[0].kinds[1].forward_layer_s: is 0: it must be positive");
  p.ranks[0].kinds[1].forward_layer_s = 1;
  EXPECT_EQ(Complaint(p),
            "ranks[0].kinds[1].backward_layer_s: is 0: it must be positive");
  p.ranks[0].tensors.clear();  // without tensors the layers are frozen
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
