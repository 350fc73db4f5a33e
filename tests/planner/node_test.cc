#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "planner/validator.h"
#include "proto/plan/codec.h"
#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Two classes of 1 and 4 MB a layer, 10 layers, a second forward and two
// backward: alpha a holds 10 + 40 a MB and copies 1 + 4 a MB a layer.
plan::RankProfile SampleProfile(uint64_t rank) {
  plan::RankProfile p;
  p.rank = Rank(rank);
  p.layers = 10;
  p.classes = {{.name = "layer_input",
                .bytes_per_layer = Bytes(1'000'000),
                .must_swap = true},
               {.name = "ffn_up",
                .bytes_per_layer = Bytes(4'000'000),
                .recompute_seconds = 0.01}};
  p.forward_layer_seconds = 1;
  p.backward_layer_seconds = 2;
  return p;
}

NodeResources Resources(double bytes_per_second, Bytes budget,
                        uint64_t ranks = 1) {
  NodeResources resources;
  resources.links.push_back({"pcie0", bytes_per_second, bytes_per_second, {}});
  for (uint64_t r = 0; r < ranks; ++r) {
    resources.links[0].ranks.push_back(Rank(r));
  }
  resources.host_budget = {budget};
  return resources;
}

plan::NodePlan MustPlan(const std::vector<plan::RankProfile>& profiles,
                        const NodeResources& resources) {
  auto plan = PlanNode(profiles, resources, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const absl::Status valid = ValidateNodePlan(profiles, resources, *plan);
  EXPECT_TRUE(valid.ok()) << valid;
  return *std::move(plan);
}

plan::RankPlan PlanOne(const plan::RankProfile& profile,
                       const NodeResources& resources) {
  const plan::NodePlan plan = MustPlan({profile}, resources);
  EXPECT_EQ(plan.infeasible, "");
  return plan.ranks.empty() ? plan::RankPlan{} : plan.ranks[0];
}

constexpr Bytes kPlenty(1'000'000'000);
constexpr double kFast = 1e12;

TEST(PlanNode, AlphaIsOneWhereNothingLimitsIt) {
  const plan::RankPlan rank =
      PlanOne(SampleProfile(0), Resources(kFast, kPlenty));
  EXPECT_EQ(rank.alpha, 1);
  EXPECT_EQ(rank.alpha_limited_by, "none");
  EXPECT_EQ(rank.host_bytes, Bytes(50'000'000));
  ASSERT_EQ(rank.classes.size(), 2u);
  EXPECT_EQ(rank.classes[1].swap, 1);
  EXPECT_EQ(rank.classes[1].recompute, 0);
}

TEST(PlanNode, TheForwardWindowLimitsAlpha) {
  // 1 + 4 a MB in 1 s at 3 MB/s.
  const plan::RankPlan rank =
      PlanOne(SampleProfile(0), Resources(3e6, kPlenty));
  EXPECT_EQ(rank.alpha, 0.5);
  EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
  EXPECT_EQ(rank.classes[0].swap, 1);
  EXPECT_EQ(rank.classes[1].swap, 0.5);
  EXPECT_EQ(rank.classes[1].recompute, 0.5);
}

TEST(PlanNode, TheBackwardWindowLimitsAlphaToo) {
  plan::RankProfile p = SampleProfile(0);
  p.backward_layer_seconds = 0.5;  // 1 + 4 a MB in half a second at 4 MB/s
  const plan::RankPlan rank = PlanOne(p, Resources(4e6, kPlenty));
  EXPECT_EQ(rank.alpha, 0.25);
  EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
}

TEST(PlanNode, FixedTrafficTakesItsPartOfTheWindow) {
  plan::RankProfile p = SampleProfile(0);
  p.forward_d2h_fixed = Bytes(1'000'000);
  EXPECT_EQ(PlanOne(p, Resources(3e6, kPlenty)).alpha, 0.25);
  p.forward_d2h_fixed = Bytes(0);
  p.backward_h2d_fixed = Bytes(4'000'000);  // re-reads: 6 MB/s * 2 s in all
  EXPECT_EQ(PlanOne(p, Resources(4e6, kPlenty)).alpha, 0.75);
  p.backward_h2d_fixed = Bytes(5'000'000);
  EXPECT_EQ(PlanOne(p, Resources(4e6, kPlenty)).alpha, 0.5);
}

TEST(PlanNode, ClassesCopiedInAnyCaseCostHostMemoryOnly) {
  plan::RankProfile p = SampleProfile(0);
  p.classes[1].traffic_in_fixed = true;
  EXPECT_EQ(PlanOne(p, Resources(3e6, kPlenty)).alpha, 1);
  const plan::RankPlan rank = PlanOne(p, Resources(3e6, Bytes(20'000'000)));
  EXPECT_EQ(rank.alpha, 0.25);
  EXPECT_EQ(rank.alpha_limited_by, "host");
}

TEST(PlanNode, TheHostBudgetLimitsAlphaOverAllRanksOfItsNumaNode) {
  std::vector<plan::RankProfile> profiles = {SampleProfile(0),
                                             SampleProfile(1)};
  profiles[1].host_fixed = Bytes(20'000'000);
  // 2 * (10 + 40 a) + 20 MB in 80 MB.
  const plan::NodePlan plan =
      MustPlan(profiles, Resources(kFast, Bytes(80'000'000), 2));
  for (const plan::RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.alpha, 0.5);
    EXPECT_EQ(rank.alpha_limited_by, "host");
  }
}

TEST(PlanNode, ResidentLayersNeedNoHostMemory) {
  plan::RankProfile p = SampleProfile(0);
  p.resident_layers = 2;
  EXPECT_EQ(PlanOne(p, Resources(kFast, Bytes(24'000'000))).alpha, 0.5);
}

TEST(PlanNode, AllRanksHaveTheAlphaOfTheTightestLink) {
  std::vector<plan::RankProfile> profiles = {SampleProfile(0), SampleProfile(1),
                                             SampleProfile(2)};
  NodeResources resources = Resources(6e6, kPlenty, 2);
  resources.links.push_back({"pcie1", 4e6, 4e6, {Rank(2)}});
  const plan::NodePlan plan = MustPlan(profiles, resources);
  for (const plan::RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.alpha, 0.5);
    EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
  }
}

// The runtime's k and v of a rank hold rows of all ranks: one cut for a run.
TEST(PlanNode, RanksOfUnequalSpeedGetOneAlphaThatUsesTheHostBudget) {
  std::vector<plan::RankProfile> profiles;
  for (uint64_t r = 0; r < 4; ++r) {
    profiles.push_back(SampleProfile(r));
    profiles.back().forward_layer_seconds = 1 + 0.3 * static_cast<double>(r);
    profiles.back().classes[1].recompute_seconds =
        0.01 + 0.02 * static_cast<double>(r);
  }
  // 4 * (10 + 40 a) MB in 128 MB.
  const plan::NodePlan plan =
      MustPlan(profiles, Resources(kFast, Bytes(128'000'000), 4));
  Bytes used;
  for (const plan::RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.alpha, plan.ranks[0].alpha);
    EXPECT_EQ(rank.alpha_limited_by, "host");
    used += rank.host_bytes;
  }
  EXPECT_GT(used, Bytes(127'900'000));
  EXPECT_LE(used, Bytes(128'000'000));
}

TEST(PlanNode, CopiesThatCannotHideMeanAlphaZeroNotARefusal) {
  const plan::RankPlan slow =
      PlanOne(SampleProfile(0), Resources(0.5e6, kPlenty));
  EXPECT_EQ(slow.alpha, 0);
  EXPECT_EQ(slow.alpha_limited_by, "bandwidth");
  EXPECT_EQ(slow.host_bytes, Bytes(10'000'000));
  plan::RankProfile unmeasured = SampleProfile(0);
  unmeasured.forward_layer_seconds = 0;
  EXPECT_EQ(PlanOne(unmeasured, Resources(kFast, kPlenty)).alpha, 0);
}

TEST(PlanNode, ALinkNobodyIsOnLimitsNobody) {
  EXPECT_EQ(PlanOne(SampleProfile(0), Resources(1, kPlenty, 0)).alpha, 1);
}

TEST(PlanNode, NoBudgetGivenMeansNoLimit) {
  NodeResources resources = Resources(kFast, Bytes(-1));
  EXPECT_EQ(PlanOne(SampleProfile(0), resources).alpha, 1);
  resources.host_budget.clear();
  EXPECT_EQ(PlanOne(SampleProfile(0), resources).alpha, 1);
}

TEST(PlanNode, AUsersAlphaIsCheckedAgainstTheHostBudgetOnly) {
  plan::RankProfile p = SampleProfile(0);
  p.alpha = 0.3;
  const plan::RankPlan rank = PlanOne(p, Resources(1e6, kPlenty));
  EXPECT_EQ(rank.alpha, 0.3);
  EXPECT_EQ(rank.alpha_limited_by, "flag");
}

TEST(PlanNode, AUsersAlphaThatDoesNotFitIsRefusedWithTheLargestThatWould) {
  plan::RankProfile p = SampleProfile(0);
  p.alpha = 0.5;
  const plan::NodePlan plan =
      MustPlan({p}, Resources(kFast, Bytes(20'000'000)));
  EXPECT_EQ(plan.infeasible,
            "alpha 0.5 needs 28.6 MiB (30000000 bytes) of host memory for 1 "
            "rank(s) on NUMA node 0, the budget is 19.1 MiB (20000000 bytes): "
            "the largest alpha that fits is 0.2500, or shorten the sequence to "
            "about 66 % of this length, or raise the host budget");
  EXPECT_EQ(plan.limited_by, "host_memory");
  p.alpha = 0.25;
  EXPECT_EQ(PlanOne(p, Resources(kFast, Bytes(20'000'000))).alpha, 0.25);
}

TEST(PlanNode, WhatDoesNotFitAtAlphaZeroIsRefusedInOneLine) {
  const plan::NodePlan plan =
      MustPlan({SampleProfile(0)}, Resources(kFast, Bytes(9'999'999)));
  EXPECT_THAT(
      plan.infeasible,
      StartsWith("alpha 0 (the least) needs 9.5 MiB (10000000 bytes) of "
                 "host memory for 1 rank(s) on NUMA node 0, the budget "
                 "is 9.5 MiB (9999999 bytes): shorten the sequence"));
  EXPECT_EQ(plan.limited_by, "host_memory");
  EXPECT_EQ(MustPlan({SampleProfile(0)}, Resources(kFast, Bytes(10'000'000)))
                .infeasible,
            "");
}

TEST(PlanNode, TransientBuffersBeyondTheLeaseAreRefusedWithTheirSegment) {
  plan::RankProfile p = SampleProfile(3);
  p.segments = {{.name = "qkv.forward.full",
                 .trace = {.buffers = {{0, 0, 1, Bytes(64)}}, .end = 1}},
                {.name = "loss.full",
                 .trace = {.buffers = {{0, 0, 1, Bytes(1 << 20)}}, .end = 1}}};
  p.transient_capacity = Bytes((1 << 20) - 64);
  const plan::NodePlan plan = MustPlan({p}, Resources(kFast, kPlenty));
  EXPECT_THAT(plan.infeasible,
              StartsWith("rank 3 needs 1 MiB (1048576 bytes) of GPU memory for "
                         "the transient buffers of segment 'loss.full', its "
                         "lease has 1023.9 KiB (1048512 bytes) left"));
  EXPECT_EQ(plan.limited_by, "gpu_memory");
  p.transient_capacity = Bytes(1 << 20);
  EXPECT_EQ(PlanOne(p, Resources(kFast, kPlenty)).transient_peak, MiB(1));
}

TEST(PlanNode, ARankWithTwoProfilesIsAnError) {
  const auto plan = PlanNode({SampleProfile(0), SampleProfile(0)}, {}, {});
  EXPECT_EQ(std::string(plan.status().message()), "rank 0 has two profiles");
}

// ---- Against a grid --------------------------------------------------------

// The rows of the LP written out again, for alphas given.
bool Feasible(const std::vector<plan::RankProfile>& profiles,
              const NodeResources& resources,
              const std::vector<double>& alphas) {
  const auto bytes = [](Bytes b) { return static_cast<double>(b.count()); };
  std::vector<double> host(resources.host_budget.size(), 0);
  for (const LinkCapacity& link : resources.links) {
    double d2h = 0, h2d = 0;
    for (size_t r = 0; r < profiles.size(); ++r) {
      const plan::RankProfile& p = profiles[r];
      if (std::find(link.ranks.begin(), link.ranks.end(), p.rank) ==
          link.ranks.end()) {
        continue;
      }
      double copied = 0;
      for (const plan::SkeletalClass& c : p.classes) {
        if (c.traffic_in_fixed) continue;
        copied += bytes(c.bytes_per_layer) * (c.must_swap ? 1 : alphas[r]);
      }
      const double tf = p.forward_layer_seconds;
      const double tb = p.backward_layer_seconds;
      d2h += std::max((copied + bytes(p.forward_d2h_fixed)) / tf,
                      bytes(p.backward_d2h_fixed) / tb);
      h2d += std::max(bytes(p.forward_h2d_fixed) / tf,
                      (copied + bytes(p.backward_h2d_fixed)) / tb);
    }
    if (d2h > link.d2h_bytes_per_second || h2d > link.h2d_bytes_per_second) {
      return false;
    }
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    const plan::RankProfile& p = profiles[r];
    double held = bytes(p.host_fixed);
    for (const plan::SkeletalClass& c : p.classes) {
      held += static_cast<double>(p.layers - p.resident_layers) *
              bytes(c.bytes_per_layer) * (c.must_swap ? 1 : alphas[r]);
    }
    host[p.numa.value()] += held;
  }
  for (size_t node = 0; node < host.size(); ++node) {
    if (host[node] > bytes(resources.host_budget[node])) return false;
  }
  return true;
}

class RandomNode {
 public:
  explicit RandomNode(std::mt19937& random) : random_(random) {
    const uint64_t ranks = 1 + random() % 4;
    for (uint64_t r = 0; r < ranks; ++r) profiles.push_back(Profile(r));
    for (int l = 0; l < 3; ++l) {
      LinkCapacity link{"link" + std::to_string(l), 0, 0, {}};
      link.d2h_bytes_per_second = Uniform(5e6, 6e7);
      link.h2d_bytes_per_second = Uniform(5e6, 6e7);
      for (uint64_t r = 0; r < ranks; ++r) {
        if (random() % 2) link.ranks.push_back(Rank(r));
      }
      resources.links.push_back(link);
    }
    resources.host_budget = {Bytes(Whole(100e6, 600e6)),
                             Bytes(Whole(100e6, 600e6))};
  }

  std::vector<plan::RankProfile> profiles;
  NodeResources resources;

 private:
  double Uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() % 10001) / 1e4;
  }
  int64_t Whole(double low, double high) {
    return static_cast<int64_t>(Uniform(low, high));
  }

  plan::RankProfile Profile(uint64_t r) {
    plan::RankProfile p = SampleProfile(r);
    p.numa = NumaIndex(random_() % 2);
    p.classes[0].bytes_per_layer = Bytes(Whole(0, 3e6));
    p.classes[1].bytes_per_layer = Bytes(Whole(1e6, 9e6));
    p.classes.push_back({.name = "kv",
                         .bytes_per_layer = Bytes(Whole(0, 3e6)),
                         .traffic_in_fixed = true});
    p.forward_layer_seconds = Uniform(0.3, 2);
    p.backward_layer_seconds = Uniform(0.3, 3);
    p.forward_d2h_fixed = Bytes(Whole(0, 3e6));
    p.forward_h2d_fixed = Bytes(Whole(0, 9e6));
    p.backward_d2h_fixed = Bytes(Whole(0, 9e6));
    p.backward_h2d_fixed = Bytes(Whole(0, 3e6));
    p.host_fixed = Bytes(Whole(0, 3e7));
    return p;
  }

  std::mt19937& random_;
};

TEST(PlanNode, TheAlphaIsTheLargestThatFitsAllRanks) {
  constexpr double kStep = 1.0 / 4096;
  std::mt19937 random(9);
  int between = 0;
  for (int round = 0; round < 300; ++round) {
    const RandomNode node(random);
    const size_t n = node.profiles.size();
    if (!Feasible(node.profiles, node.resources, std::vector<double>(n, 0))) {
      continue;
    }
    const plan::NodePlan plan = MustPlan(node.profiles, node.resources);
    ASSERT_EQ(plan.infeasible, "");
    const double alpha = plan.ranks[0].alpha;
    for (const plan::RankPlan& r : plan.ranks) EXPECT_EQ(r.alpha, alpha);
    between += alpha > 0 && alpha < 1;
    EXPECT_TRUE(
        Feasible(node.profiles, node.resources, std::vector<double>(n, alpha)));
    if (alpha + 1.01 * kStep > 1) continue;
    EXPECT_FALSE(Feasible(node.profiles, node.resources,
                          std::vector<double>(n, alpha + 1.01 * kStep)))
        << "round " << round << " alpha " << alpha;
    EXPECT_NE(plan.ranks[0].alpha_limited_by, "none");
  }
  EXPECT_GT(between, 50);
}

// ---- Golden ----------------------------------------------------------------

// The plan of a node of two ranks with the segments of a streamed layer. A
// change shows as a diff of tests/golden/planner; SLUICE_UPDATE_GOLDEN=1
// rewrites it.
plan::PlanRequest GoldenRequest() {
  std::mt19937 random(10);
  plan::PlanRequest request;
  for (uint64_t r = 0; r < 2; ++r) {
    request.profiles.push_back(SampleProfile(r));
  }
  const char* const kinds[] = {"qkv.forward.full", "block.diagonal.forward",
                               "post.forward.full", "loss.full"};
  for (const char* kind : kinds) {
    plan::Trace trace = LayerTrace(random, 1 + random() % 3, 0.4);
    for (plan::RankProfile& p : request.profiles) {
      p.segments.push_back(
          {.name = kind, .trace = trace, .seconds = 0.125, .executions = 64});
    }
  }
  request.resources = Resources(5e6, Bytes(90'000'000), 2);
  return request;
}

TEST(PlanNode, GoldenPlanOfAStreamedLayer) {
  const plan::PlanRequest request = GoldenRequest();
  plan::NodePlan plan = MustPlan(request.profiles, request.resources);
  plan.seconds = 0;
  for (plan::RankPlan& rank : plan.ranks) {
    for (plan::SegmentPlan& s : rank.segments) s.placement.seconds = 0;
  }
  const std::string path =
      std::string(SLUICE_GOLDEN_DIR) + "/planner/node_plan.json";
  const std::string actual = plan::Encode(plan) + "\n";
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << actual;
  }
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << "differs from " << path;
}

}  // namespace
}  // namespace sluice::planner
