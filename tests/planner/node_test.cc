#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "proto/plan/codec.h"
#include "tests/planner/node_samples.h"
#include "tests/planner/traces.h"
#include "tests/support/golden.h"

namespace sluice::planner {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(PlanNode, AlphaIsOneWhereNothingLimitsIt) {
  const plan::RankPlan rank =
      PlanOne(SampleProfile(0), Resources(kFast, kPlenty));
  EXPECT_EQ(rank.alpha, 1);
  EXPECT_EQ(rank.alpha_limited_by, "none");
  EXPECT_EQ(rank.host_bytes, Bytes(50'000'000));
  ASSERT_EQ(rank.classes.size(), 2u);
  EXPECT_EQ(rank.classes[1].fractions.swap, 1);
  EXPECT_EQ(rank.classes[1].fractions.recompute, 0);
}

TEST(PlanNode, TheForwardWindowLimitsAlpha) {
  // (1 + 4 alpha) MB must be copied in 1 s at 3 MB/s.
  const plan::RankPlan rank =
      PlanOne(SampleProfile(0), Resources(3e6, kPlenty));
  EXPECT_EQ(rank.alpha, 0.5);
  EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
  EXPECT_EQ(rank.classes[0].fractions.swap, 1);
  EXPECT_EQ(rank.classes[1].fractions.swap, 0.5);
  EXPECT_EQ(rank.classes[1].fractions.recompute, 0.5);
}

TEST(PlanNode, TheBackwardWindowLimitsAlphaToo) {
  plan::RankProfile p = SampleProfile(0);
  p.kinds[0].backward_layer_seconds =
      0.5;  // (1 + 4 alpha) MB in half a second at 4 MB/s
  const plan::RankPlan rank = PlanOne(p, Resources(4e6, kPlenty));
  EXPECT_EQ(rank.alpha, 0.25);
  EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
}

TEST(PlanNode, FixedTrafficTakesItsPartOfTheWindow) {
  plan::RankProfile p = SampleProfile(0);
  p.kinds[0].forward_d2h_fixed = Bytes(1'000'000);
  EXPECT_EQ(PlanOne(p, Resources(3e6, kPlenty)).alpha, 0.25);
  p.kinds[0].forward_d2h_fixed = Bytes(0);
  p.kinds[0].backward_h2d_fixed =
      Bytes(4'000'000);  // (4 + 1 + 4 alpha) MB in 2 s at 4 MB/s
  EXPECT_EQ(PlanOne(p, Resources(4e6, kPlenty)).alpha, 0.75);
  p.kinds[0].backward_h2d_fixed = Bytes(5'000'000);
  EXPECT_EQ(PlanOne(p, Resources(4e6, kPlenty)).alpha, 0.5);
}

TEST(PlanNode, AClassCopiedAsFixedTrafficCostsOnlyHostMemory) {
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
  // (2 x (10 + 40 alpha) + 20) MB must fit into 80 MB.
  const plan::NodePlan plan =
      MustPlan(profiles, Resources(kFast, Bytes(80'000'000), 2));
  for (const plan::RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.alpha, 0.5);
    EXPECT_EQ(rank.alpha_limited_by, "host");
  }
}

TEST(PlanNode, ResidentLayersNeedNoHostMemory) {
  plan::RankProfile p = SampleProfile(0);
  p.kinds[0].resident_layers = 2;
  EXPECT_EQ(PlanOne(p, Resources(kFast, Bytes(24'000'000))).alpha, 0.5);
}

TEST(PlanNode, CopiesThatCannotHideMakeAlphaZero) {
  const plan::RankPlan slow =
      PlanOne(SampleProfile(0), Resources(0.5e6, kPlenty));
  EXPECT_EQ(slow.alpha, 0);
  EXPECT_EQ(slow.alpha_limited_by, "bandwidth");
  EXPECT_EQ(slow.host_bytes, Bytes(10'000'000));
  plan::RankProfile unmeasured = SampleProfile(0);
  unmeasured.kinds[0].forward_layer_seconds = 0;
  EXPECT_EQ(PlanOne(unmeasured, Resources(kFast, kPlenty)).alpha, 0);
}

TEST(PlanNode, ALinkWithoutRanksLimitsNoRank) {
  EXPECT_EQ(PlanOne(SampleProfile(0), Resources(1, kPlenty, 0)).alpha, 1);
}

TEST(PlanNode, WithoutABudgetHostMemoryIsNotLimited) {
  NodeResources resources = Resources(kFast, Bytes(0));
  resources.hosts.clear();
  EXPECT_EQ(PlanOne(SampleProfile(0), resources).alpha, 1);
}

TEST(PlanNode, AUsersAlphaIsNotLimitedByTheLink) {
  plan::RankProfile p = SampleProfile(0);
  p.alpha = 0.3;
  const plan::RankPlan rank = PlanOne(p, Resources(1e6, kPlenty));
  EXPECT_EQ(rank.alpha, 0.3);
  EXPECT_EQ(rank.alpha_limited_by, "flag");
}

TEST(PlanNode, AUsersAlphaThatDoesNotFitIsRefusedAndTheLargestIsNamed) {
  plan::RankProfile p = SampleProfile(0);
  p.alpha = 0.5;
  const plan::NodePlan plan =
      MustPlan({p}, Resources(kFast, Bytes(20'000'000)));
  EXPECT_EQ(plan.infeasible,
            "alpha 0.5 needs 28.6 MiB (30000000 bytes) of host memory for 1 "
            "rank(s), the host of NUMA node 0 has 19.1 MiB (20000000 bytes): "
            "the largest alpha that fits is 0.2500, or shorten the sequence to "
            "about 66 % of this length, or raise the host budget");
  EXPECT_EQ(plan.limited_by, "host_memory");
  p.alpha = 0.25;
  EXPECT_EQ(PlanOne(p, Resources(kFast, Bytes(20'000'000))).alpha, 0.25);
}

TEST(PlanNode, AProfileThatDoesNotFitAtAlphaZeroIsRefused) {
  const plan::NodePlan plan =
      MustPlan({SampleProfile(0)}, Resources(kFast, Bytes(9'999'999)));
  EXPECT_THAT(
      plan.infeasible,
      StartsWith("alpha 0 (the least) needs 9.5 MiB (10000000 bytes) of "
                 "host memory for 1 rank(s), the host of NUMA node 0 "
                 "has 9.5 MiB (9999999 bytes): shorten the sequence"));
  EXPECT_EQ(plan.limited_by, "host_memory");
  EXPECT_EQ(MustPlan({SampleProfile(0)}, Resources(kFast, Bytes(10'000'000)))
                .infeasible,
            "");
}

// The advice must not be to shorten the sequence to 0 % of its length.
TEST(PlanNode, NoLengthIsSuggestedIfNoneWouldFit) {
  const plan::NodePlan plan =
      MustPlan({SampleProfile(0)}, Resources(kFast, Bytes(99'999)));
  EXPECT_THAT(plan.infeasible,
              EndsWith("(99999 bytes): raise the host budget"));
}

TEST(PlanNode, TransientBuffersBeyondTheLeaseAreRefusedNamingTheirSegment) {
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

// ---- Golden ----------------------------------------------------------------

// Returns a node of two ranks with the segments of a streamed layer.
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

TEST(PlanNode, AStreamedLayersPlanIsTheGoldenOne) {
  const plan::PlanRequest request = GoldenRequest();
  plan::NodePlan plan = MustPlan(request.profiles, request.resources);
  plan.seconds = 0;
  for (plan::RankPlan& rank : plan.ranks) {
    for (plan::SegmentPlan& s : rank.segments) s.placement.seconds = 0;
  }
  testing::ExpectGolden(plan::Encode(plan) + "\n",
                        "tests/golden/planner/node_plan.json");
}

}  // namespace
}  // namespace sluice::planner
