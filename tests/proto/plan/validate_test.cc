#include "proto/plan/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::plan {
namespace {

using ::testing::HasSubstr;

// Three buffers: 0 and 1 live at the same time, and 2 reuses the place of 0.
Trace SampleTrace() {
  return {.buffers = {{0, 0, 2, Bytes(100)},
                      {1, 1, 4, Bytes(64)},
                      {2, 2, 4, Bytes(128)}},
          .end = 4,
          .alignment = Bytes(64)};
}

Placement SamplePlacement() {
  return {.offsets = {Bytes(0), Bytes(128), Bytes(0)},
          .peak = Bytes(192),
          .lower_bound = Bytes(192),
          .proved_by = "max_live"};
}

RankProfile SampleProfile() {
  RankProfile p;
  p.kinds[0].layers = 3;
  p.kinds[0].resident_layers = 1;
  p.segments = {{.name = "ffn.full", .trace = SampleTrace()}};
  p.classes = {
      {.name = "in", .bytes_per_layer = Bytes(1000), .must_swap = true},
      {.name = "up", .bytes_per_layer = Bytes(4000)},
      {.name = "act", .bytes_per_layer = Bytes(0), .can_keep = true}};
  p.kinds[0].forward_layer_seconds = 1;
  p.kinds[0].backward_layer_seconds = 2;
  p.host_fixed = Bytes(50);
  p.transient_capacity = Bytes(256);
  return p;
}

NodeResources SampleResources() {
  return {.links = {{"pcie0", 3000, 3000, {0}}},
          .hosts = {{"host of NUMA node 0", Bytes(6050), {0}}}};
}

NodePlan SamplePlan() {
  RankPlan rank;
  rank.segments = {{"ffn.full", Bytes(64), SamplePlacement()}};
  rank.transient_peak = Bytes(256);
  rank.classes = {
      {"in", {0, 1, 0}, ""}, {"up", {0, 0.5, 0.5}, ""}, {"act", {1, 0, 0}, ""}};
  rank.alpha = 0.5;
  rank.host_bytes = Bytes(2 * (1000 + 2000) + 50);
  NodePlan plan;
  plan.ranks = {rank};
  return plan;
}

TEST(Validate, AGoodPlacementPasses) {
  EXPECT_TRUE(ValidatePlacement(SampleTrace(), SamplePlacement()).ok());
}

TEST(Validate, BuffersThatNeverLiveTogetherMayShareAPlace) {
  const Trace trace = {.buffers = {{0, 0, 1, Bytes(64)}, {1, 1, 2, Bytes(64)}},
                       .end = 2};
  const Placement placement = {.offsets = {Bytes(0), Bytes(0)},
                               .peak = Bytes(64)};
  EXPECT_TRUE(ValidatePlacement(trace, placement).ok());
}

struct Planted {
  const char* message;
  std::function<void(Placement&)> error;
};

TEST(Validate, EveryPlantedErrorOfAPlacementIsNamed) {
  const std::vector<Planted> errors = {
      {"buffers 0 and 1 overlap: both live in [1, 2), at [0, 100) and "
       "[64, 128)",
       [](Placement& p) { p.offsets[1] = Bytes(64); }},
      {"buffers 1 and 2 overlap",
       [](Placement& p) { p.offsets[2] = Bytes(64); }},
      {"buffer 0 lies at -64, below 0",
       [](Placement& p) { p.offsets[0] = Bytes(-64); }},
      {"buffer 1 lies at 160, no multiple of 64",
       [](Placement& p) { p.offsets[1] = Bytes(160); }},
      {"buffer 1 ends at 192, above the peak 191",
       [](Placement& p) { p.peak = p.lower_bound = Bytes(191); }},
      {"2 offsets for 3 buffers", [](Placement& p) { p.offsets.pop_back(); }},
      {"below its own lower bound 193",
       [](Placement& p) { p.lower_bound = Bytes(193); }},
  };
  for (const Planted& planted : errors) {
    Placement placement = SamplePlacement();
    planted.error(placement);
    const absl::Status status = ValidatePlacement(SampleTrace(), placement);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr(planted.message));
  }
}

// A large trace is replayed in time order instead of compared pair by pair. The
// replay must accept good plans and find every planted overlap.
TEST(Validate, OverlapsAreFoundInALargePlacement) {
  constexpr int64_t kBuffers = 6000;  // in groups of 3 with the same lifetime
  Trace trace{.end = kBuffers, .alignment = Bytes(1)};
  Placement placement{.peak = Bytes(30)};
  for (int64_t k = 0; k < kBuffers; ++k) {
    trace.buffers.push_back({k, k - k % 3, k - k % 3 + 3, Bytes(10)});
    placement.offsets.push_back(Bytes(k % 3 * 10));
  }
  EXPECT_TRUE(ValidatePlacement(trace, placement).ok());
  for (const size_t k : {0u, 1u, 2500u, 5999u}) {
    for (const int64_t offset : {0, 5, 10, 15, 20}) {
      Placement planted = placement;
      planted.offsets[k] = Bytes(offset);
      EXPECT_EQ(ValidatePlacement(trace, planted).ok(),
                planted.offsets[k] == placement.offsets[k])
          << "buffer " << k << " at " << offset;
    }
  }
  trace.buffers[3000].upper += 1;  // into the lifetime of the next group
  EXPECT_FALSE(ValidatePlacement(trace, placement).ok());
}

TEST(Validate, AGoodNodePlanPasses) {
  const absl::Status status =
      ValidateNodePlan({SampleProfile()}, SampleResources(), SamplePlan());
  EXPECT_TRUE(status.ok()) << status;
}

struct PlantedNode {
  const char* message;
  std::function<void(RankProfile&, NodeResources&, NodePlan&)> error;
};

using P = RankProfile;
using R = NodeResources;
using N = NodePlan;

void ExpectNamed(const std::vector<PlantedNode>& errors) {
  for (const PlantedNode& planted : errors) {
    RankProfile profile = SampleProfile();
    NodeResources resources = SampleResources();
    NodePlan plan = SamplePlan();
    planted.error(profile, resources, plan);
    const absl::Status status = ValidateNodePlan({profile}, resources, plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << planted.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(planted.message));
  }
}

// Gives class 'act', which is kept whole, a byte in each of the two layers that
// stream.
void Keep2Bytes(RankProfile& profile, NodePlan& plan) {
  profile.classes[2].bytes_per_layer = Bytes(1);
  plan.ranks[0].alpha = 2000. / 4001;
}

TEST(Validate, AMissingOrMisplacedSegmentIsNamed) {
  ExpectNamed({
      {"0 ranks planned, 1 profiled", [](P&, R&, N& n) { n.ranks.clear(); }},
      {"rank 0 is not planned",
       [](P&, R&, N& n) { n.ranks[0].rank = Rank(1); }},
      {"0 segments planned, 1 profiled",
       [](P&, R&, N& n) { n.ranks[0].segments.clear(); }},
      {"segment 'ffn.full' planned 0 times",
       [](P&, R&, N& n) { n.ranks[0].segments[0].name = "x"; }},
      {"segment 'ffn.full': buffers 0 and 1 overlap",
       [](P&, R&, N& n) {
         n.ranks[0].segments[0].placement.offsets[1] = Bytes(0);
       }},
      {"segment 'ffn.full' has base 32, no multiple of 64",
       [](P&, R&, N& n) { n.ranks[0].segments[0].base = Bytes(32); }},
      {"segment 'ffn.full' ends at 256, above the region's 255",
       [](P&, R&, N& n) { n.ranks[0].transient_peak = Bytes(255); }},
      {"rank 0 is not planned", [](P& p, R&, N&) { p.job = 1; }},
  });
}

TEST(Validate, WrongFractionsAreNamed) {
  ExpectNamed({
      {"2 classes planned, 3 profiled",
       [](P&, R&, N& n) { n.ranks[0].classes.pop_back(); }},
      {"class 'in' planned 2 times",
       [](P&, R&, N& n) { n.ranks[0].classes[1].name = "in"; }},
      {"class 'in' must be swapped whole",
       [](P&, R&, N& n) {
         n.ranks[0].classes[0] = {"in", {0, 0.5, 0.5}, ""};
       }},
      {"alpha is 0.5, the classes swap 0.25 of their bytes",
       [](P&, R&, N& n) {
         n.ranks[0].classes[1] = {"up", {0, 0.25, 0.75}, ""};
       }},
      {"class 'up' keeps 0.25, the runtime cannot keep it",
       [](P&, R&, N& n) {
         n.ranks[0].classes[1] = {"up", {0.25, 0.5, 0.25}, ""};
       }},
      {"class 'act' keeps 1, asked for 0.5",
       [](P& p, R&, N&) { p.classes[2].given.keep = 0.5; }},
      {"class 'up' swaps 0.5, asked for 0.75",
       [](P& p, R&, N&) { p.classes[1].given.swap = 0.75; }},
      {"class 'up' has fractions that sum to 0.9",
       [](P&, R&, N& n) {
         n.ranks[0].classes[1] = {"up", {0, 0.5, 0.4}, ""};
       }},
      {"class 'up' has a fraction -0.5",
       [](P&, R&, N& n) {
         n.ranks[0].classes[1] = {"up", {-0.5, 0.5, 1}, ""};
       }},
      {"class 'up' swaps 0.5, asked for 0.25",
       [](P& p, R&, N&) { p.alpha = 0.25, p.classes[2].given.keep = 1; }},
  });
}

TEST(Validate, AnExceededLimitIsNamed) {
  ExpectNamed({
      {"needs 256 transient bytes, its lease has 255",
       [](P& p, R&, N&) { p.transient_capacity = Bytes(255); }},
      {"keeps 2 bytes beside 256 transient ones and 0 in reserve, its lease "
       "has 256",
       [](P& p, R&, N& n) { Keep2Bytes(p, n); }},
      {"keeps 2 bytes beside 256 transient ones and 50 in reserve, its lease "
       "has 306",
       [](P& p, R&, N& n) {
         Keep2Bytes(p, n);
         p.transient_capacity = Bytes(306);
         p.keep_reserve = Bytes(50);
       }},
      {"keeps 2 bytes beside 256 transient ones and 0 in reserve, its lease "
       "has 0",
       [](P& p, R&, N& n) {
         Keep2Bytes(p, n);
         p.transient_capacity = Bytes(0);
       }},
      {"host_bytes is 6048, the classes need 6050",
       [](P&, R&, N& n) { n.ranks[0].host_bytes = Bytes(6048); }},
      {"6050 bytes of the host of NUMA node 0, which has 6049",
       [](P&, R& r, N&) { r.hosts[0].bytes = Bytes(6049); }},
      {"link 'pcie0' moves 3000 bytes/s to the host, it has 2999",
       [](P&, R& r, N&) { r.links[0].d2h_bytes_per_second = 2999; }},
      {"link 'pcie0' moves 1500 bytes/s to the GPUs, it has 1499",
       [](P&, R& r, N&) { r.links[0].h2d_bytes_per_second = 1499; }},
      {"link 'pcie0' moves 3000 bytes/s both ways, it has 2999",
       [](P&, R& r, N&) { r.links[0].both_bytes_per_second = 2999; }},
      {"link 'pcie0' moves 3001 bytes/s to the host",
       [](P& p, R&, N&) { p.kinds[0].forward_d2h_fixed = Bytes(1); }},
      {"link 'pcie0' moves 3002 bytes/s to the GPUs",
       [](P& p, R&, N&) { p.kinds[0].backward_h2d_fixed = Bytes(3004); }},
  });
}

TEST(Validate, ALinkMayBeOverloadedByAsMuchAsThePlanSays) {
  NodePlan plan = SamplePlan();
  NodeResources resources = SampleResources();
  resources.links[0].d2h_bytes_per_second = 2000;  // the plan uses 3000
  const auto valid = [&] {
    return ValidateNodePlan({SampleProfile()}, resources, plan).ok();
  };
  EXPECT_FALSE(valid());
  plan.limits = {{.what = "link pcie0 d2h", .used = 2999, .capacity = 2000}};
  EXPECT_FALSE(valid());
  plan.limits[0].used = 3000;
  EXPECT_TRUE(valid());
  plan.limits[0].what = "link pcie0 h2d";
  EXPECT_FALSE(valid());
}

TEST(Validate, KeptBytesMayTakeWhatTheReserveLeaves) {
  RankProfile profile = SampleProfile();
  NodePlan plan = SamplePlan();
  Keep2Bytes(profile, plan);
  profile.transient_capacity = Bytes(308);
  profile.keep_reserve = Bytes(50);
  EXPECT_TRUE(ValidateNodePlan({profile}, SampleResources(), plan).ok());
}

TEST(Validate, TheRanksPartOfAPlanIsFoundByJobAndRank) {
  NodePlan plan = SamplePlan();
  plan.ranks.push_back(plan.ranks[0]);
  plan.ranks[1].job = 1;
  RankProfile profile = SampleProfile();
  profile.job = 1;
  EXPECT_EQ(PartOf(plan, profile), &plan.ranks[1]);
  profile.rank = Rank(7);
  EXPECT_EQ(PartOf(plan, profile), nullptr);
}

TEST(Validate, RanksOfAJobShareTheFractionsOfSharedClasses) {
  std::vector<RankProfile> profiles = {SampleProfile(), SampleProfile()};
  profiles[1].rank = Rank(1);
  NodePlan plan = SamplePlan();
  plan.ranks.push_back(plan.ranks[0]);
  plan.ranks[1].rank = Rank(1);
  plan.ranks[1].classes[1] = {"up", {0, 0.25, 0.75}, ""};
  plan.ranks[1].alpha = 0.25;
  EXPECT_TRUE(ValidateNodePlan(profiles, {}, plan).ok());
  for (RankProfile& p : profiles) p.classes[1].shared = true;
  EXPECT_EQ(std::string(ValidateNodePlan(profiles, {}, plan).message()),
            "class 'up' swaps 0.25 on rank 1, 0.5 on another rank");
  profiles[1].job = plan.ranks[1].job = 1;
  EXPECT_TRUE(ValidateNodePlan(profiles, {}, plan).ok());
}

// Adds a second kind, "long": two layers that take twice as long to compute.
void AddLongLayers(RankProfile* profile, RankPlan* plan) {
  profile->kinds.push_back(profile->kinds[0]);
  profile->kinds[1].name = "long";
  profile->kinds[1].layers = 2;
  profile->kinds[1].resident_layers = 0;
  profile->kinds[1].forward_layer_seconds = 2;
  profile->kinds[1].backward_layer_seconds = 4;
  const std::vector<SkeletalClass> classes = profile->classes;
  for (SkeletalClass c : classes) {
    c.kind = "long";
    profile->classes.push_back(c);
  }
  plan->classes.push_back({"in", {0, 1, 0}, "", "long"});
  plan->classes.push_back({"up", {0, 1, 0}, "", "long"});
  plan->classes.push_back({"act", {1, 0, 0}, "", "long"});
  plan->host_bytes += Bytes(2 * (1000 + 4000));
  plan->alpha = 0.7;  // 'up': (3 layers * 0.5 + 2 * 1) / 5
}

TEST(Validate, EachKindOfLayersIsChecked) {
  RankProfile profile = SampleProfile();
  NodePlan plan = SamplePlan();
  AddLongLayers(&profile, &plan.ranks[0]);
  NodeResources resources = SampleResources();
  resources.hosts[0].bytes += Bytes(10000);
  // Short layers copy 3000 bytes per second, long layers 2500.
  EXPECT_TRUE(ValidateNodePlan({profile}, resources, plan).ok())
      << ValidateNodePlan({profile}, resources, plan);
  const auto complaint = [&] {
    return std::string(ValidateNodePlan({profile}, resources, plan).message());
  };
  resources.links[0].d2h_bytes_per_second = 2900;
  EXPECT_EQ(complaint(),
            "link 'pcie0' moves 3000 bytes/s to the host, it has 2900");
  resources.links[0].d2h_bytes_per_second = 3000;
  plan.ranks[0].host_bytes -= Bytes(2);
  EXPECT_EQ(complaint(), "rank 0: host_bytes is 16048, the classes need 16050");
  plan.ranks[0].host_bytes += Bytes(2);
  plan.ranks[0].alpha = 0.5;
  EXPECT_EQ(complaint(),
            "rank 0: alpha is 0.5, the classes swap 0.7 of their bytes");
  plan.ranks[0].alpha = 0.7;
  plan.ranks[0].classes[4].kind = "layer";
  EXPECT_EQ(complaint(), "rank 0: class 'up' planned 2 times");
}

// The mandatory copies of the short layers overload the link. The long
// layers' copies must still fit the link.
TEST(Validate, AnOverloadByOneKindDoesNotExcuseAnother) {
  RankProfile profile = SampleProfile();
  NodePlan plan = SamplePlan();
  AddLongLayers(&profile, &plan.ranks[0]);
  plan.ranks[0].classes[1] = {"up", {0, 0, 1}, ""};
  plan.ranks[0].alpha = 0.4;
  profile.kinds[0].forward_d2h_fixed = Bytes(9000);
  NodeResources resources = SampleResources();
  resources.hosts[0].bytes += Bytes(10000);
  resources.links[0].d2h_bytes_per_second = 2500;
  EXPECT_TRUE(ValidateNodePlan({profile}, resources, plan).ok())
      << ValidateNodePlan({profile}, resources, plan);
  resources.links[0].d2h_bytes_per_second = 2400;
  EXPECT_EQ(std::string(ValidateNodePlan({profile}, resources, plan).message()),
            "link 'pcie0' moves 2500 bytes/s to the host, it has 2400");
}

TEST(Validate, MandatoryCopiesMayOverloadALinkAtAlphaZero) {
  RankProfile profile = SampleProfile();
  profile.kinds[0].forward_d2h_fixed = Bytes(5000);
  NodePlan plan = SamplePlan();
  plan.ranks[0].alpha = 0;
  plan.ranks[0].classes[1] = {"up", {0, 0, 1}, ""};
  EXPECT_TRUE(ValidateNodePlan({profile}, SampleResources(), plan).ok());
}

TEST(Validate, TrafficInTheFixedBytesIsNotCountedTwice) {
  RankProfile profile = SampleProfile();
  profile.classes[1].traffic_in_fixed = true;
  NodeResources resources = SampleResources();
  resources.links[0].d2h_bytes_per_second = 1000;
  resources.links[0].h2d_bytes_per_second = 500;
  EXPECT_TRUE(ValidateNodePlan({profile}, resources, SamplePlan()).ok());
}

TEST(Validate, AnInfeasiblePlanIsNotChecked) {
  NodePlan plan;
  plan.infeasible = "rank 0 needs more";
  EXPECT_TRUE(
      ValidateNodePlan({SampleProfile()}, SampleResources(), plan).ok());
}

}  // namespace
}  // namespace sluice::plan
