// Tests PlanNode's fractions of each rank and class: with shared and other
// classes, with classes that may be kept, and with several jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/node_samples.h"

namespace sluice::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(PlanNode, RanksOfASharedClassHaveTheAlphaOfTheTightestLink) {
  std::vector<plan::RankProfile> profiles = {SampleProfile(0), SampleProfile(1),
                                             SampleProfile(2)};
  for (plan::RankProfile& p : profiles) p.classes[1].shared = true;
  NodeResources resources = Resources(6e6, kPlenty, 2);
  resources.links.push_back({"pcie1", 2e6, 2e6, {2}});
  const plan::NodePlan plan = MustPlan(profiles, resources);
  for (const plan::RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.alpha, 0.25);
    EXPECT_EQ(rank.alpha_limited_by, "bandwidth");
  }
  EXPECT_THAT(plan.ranks[0].classes[1].why,
              HasSubstr("link pcie1 d2h is full"));
}

TEST(PlanNode, RanksWithoutASharedClassUseAllThatTheirOwnLinksHave) {
  const std::vector<plan::RankProfile> profiles = {
      SampleProfile(0), SampleProfile(1), SampleProfile(2)};
  NodeResources resources = Resources(6e6, kPlenty, 2);
  resources.links.push_back({"pcie1", 2e6, 2e6, {2}});
  const plan::NodePlan plan = MustPlan(profiles, resources);
  EXPECT_EQ(plan.ranks[0].alpha + plan.ranks[1].alpha, 1);
  EXPECT_EQ(plan.ranks[2].alpha, 0.25);
}

// The slowest rank determines the node's step, so the link goes to the rank
// that would otherwise be the slowest.
TEST(PlanNode, TheSharedLinkGoesToTheSlowestRank) {
  std::vector<plan::RankProfile> profiles = {SampleProfile(0),
                                             SampleProfile(1)};
  profiles[1].kinds[0].backward_layer_seconds = 3;
  const plan::NodePlan plan = MustPlan(profiles, Resources(6e6, kPlenty, 2));
  EXPECT_EQ(plan.ranks[0].alpha, 0);
  EXPECT_EQ(plan.ranks[1].alpha, 1);
}

TEST(PlanNode, TheClassThatCostsMostPerByteIsSwappedFirst) {
  plan::RankProfile p = SampleProfile(0);
  p.classes.push_back({.name = "norm2",
                       .bytes_per_layer = Bytes(1'000'000),
                       .recompute_seconds = 0.0001});
  // The classes have 1, 4 and 1 MB, and the link carries 5 MB in a window of 1
  // s. One common alpha would recompute a fifth of the two free classes.
  const plan::RankPlan rank = PlanOne(p, Resources(5e6, kPlenty));
  EXPECT_EQ(rank.classes[1].fractions.swap, 1);
  EXPECT_EQ(rank.classes[2].fractions.swap, 0);
  EXPECT_EQ(rank.classes[2].fractions.recompute, 1);
  EXPECT_EQ(rank.alpha, 0.8);
  EXPECT_EQ(rank.classes[2].why,
            "recomputed: link pcie0 d2h is full; all of it recomputed would "
            "add 0.0001 s a layer, 0.107 s a GiB");
}

// Half of ffn_up is copied within the window. The other half takes 2/3 s to
// copy, or a second to recompute.
TEST(PlanNode, AClassThatIsCostlyToRecomputeIsSwappedBeyondTheWindow) {
  plan::RankProfile p = SampleProfile(0);
  p.classes[1].recompute_seconds = 2;
  const plan::NodePlan plan = MustPlan({p}, Resources(3e6, kPlenty));
  EXPECT_EQ(plan.ranks[0].classes[1].fractions.swap, 1);
  EXPECT_EQ(plan.ranks[0].classes[1].why,
            "swapped whole: what shows of its copies costs less than to "
            "recompute it");
  EXPECT_NEAR(plan.limits[0].used, 5e6, 10);
  EXPECT_EQ(plan.limits[0].capacity, 3e6);
}

plan::RankProfile Keeper(Bytes transient_capacity) {
  plan::RankProfile p = SampleProfile(0);
  p.classes[1].can_keep = true;
  p.segments = {{.name = "loss.full",
                 .trace = {.buffers = {{0, 0, 1, Bytes(1 << 20)}}, .end = 1}}};
  p.transient_capacity = transient_capacity;
  return p;
}

TEST(PlanNode, RowsAreKeptInMemoryThatTransientBuffersLeaveFree) {
  // The transient buffers leave 10 MB free, a quarter of 10 layers of 4 MB.
  plan::RankProfile p = Keeper(Bytes((1 << 20) + 10'000'000));
  const plan::RankPlan rank = PlanOne(p, Resources(3e6, kPlenty));
  EXPECT_EQ(rank.classes[1].fractions.keep, 0.25);
  EXPECT_EQ(rank.classes[1].fractions.swap, 0.5);
  EXPECT_EQ(rank.classes[1].fractions.recompute, 0.25);
  EXPECT_EQ(rank.alpha, 0.5);
  EXPECT_EQ(rank.host_bytes, Bytes(30'000'000));
  EXPECT_THAT(rank.classes[1].why,
              StartsWith("25.0 % kept, for which the GPU has room; 50.0 % "
                         "swapped, the rest recomputed: link pcie0 d2h is "
                         "full"));
  p.keep_reserve = Bytes(6'000'000);
  EXPECT_EQ(PlanOne(p, Resources(3e6, kPlenty)).classes[1].fractions.keep,
            410. / 4096 - 1. / 4096);
  p.classes[1].can_keep = false;
  EXPECT_EQ(PlanOne(p, Resources(3e6, kPlenty)).classes[1].fractions.keep, 0);
}

TEST(PlanNode, KeptRowsAreNotCopied) {
  const plan::NodePlan plan = MustPlan({Keeper(Bytes((1 << 20) + 100'000'000))},
                                       Resources(kFast, kPlenty));
  EXPECT_EQ(plan.ranks[0].classes[1].fractions.keep, 1);
  EXPECT_EQ(plan.ranks[0].alpha, 0);
  EXPECT_EQ(plan.ranks[0].alpha_limited_by, "none");
  ASSERT_EQ(plan.limits.back().what, "GPU of rank 0");
  EXPECT_EQ(plan.limits.back().used, 40'000'000);
  EXPECT_EQ(plan.limits.back().capacity, 100'000'000);
}

TEST(PlanNode, GivenFractionsAreObeyed) {
  plan::RankProfile p = Keeper(Bytes((1 << 20) + 10'000'000));
  p.classes[1].given.keep = 0.125;
  p.classes[1].given.swap = 0.25;
  const plan::RankPlan rank = PlanOne(p, Resources(kFast, kPlenty));
  EXPECT_EQ(rank.classes[1].fractions.keep, 0.125);
  EXPECT_EQ(rank.classes[1].fractions.swap, 0.25);
  EXPECT_EQ(rank.classes[1].why, "keep 0.125, swap 0.25 was asked for");
  EXPECT_EQ(rank.alpha_limited_by, "flag");
  p.alpha = 1;  // a fraction of the rows that are not kept
  p.classes[1].given.swap.reset();
  EXPECT_EQ(PlanOne(p, Resources(kFast, kPlenty)).classes[1].fractions,
            (plan::TokenFractions{0.125, 0.875, 0}));
  p.classes[1].given.keep = 0.5;
  const plan::NodePlan plan = MustPlan({p}, Resources(kFast, kPlenty));
  EXPECT_THAT(plan.infeasible,
              StartsWith("rank 0 is asked to keep 19.1 MiB (20000000 bytes) on "
                         "its GPU, which has 9.5 MiB (10000000 bytes) left"));
  EXPECT_EQ(plan.limited_by, "gpu_memory");
}

TEST(PlanNode, ImpossibleFractionsAreRefusedAndTheClassIsNamed) {
  const auto refusal = [](size_t at, plan::GivenFractions given,
                          bool can_keep = true) {
    plan::RankProfile p = Keeper(kPlenty);
    p.classes[1].can_keep = can_keep;
    p.classes[at].given = given;
    const absl::Status status =
        PlanNode({p}, Resources(kFast, kPlenty), {}).status();
    EXPECT_EQ(absl::IsInvalidArgument(status), !status.ok());
    const std::string message(status.message());
    return message.substr(0, message.find(": "));
  };
  const std::string must = "rank 0, class 'layer_input'";
  EXPECT_EQ(refusal(0, {0.5, std::nullopt}), must);
  EXPECT_EQ(refusal(0, {std::nullopt, 0.5}), must);
  EXPECT_EQ(refusal(0, {0, 1}), "");
  const std::string free = "rank 0, class 'ffn_up'";
  EXPECT_EQ(refusal(1, {0.5, std::nullopt}, /*can_keep=*/false), free);
  EXPECT_EQ(refusal(1, {0, std::nullopt}, /*can_keep=*/false), "");
  EXPECT_EQ(refusal(1, {0.5, 0.6}), free);
  EXPECT_EQ(refusal(1, {0.5, 0.5}), "");
}

TEST(PlanNode, ALimitOfAMissingProfileIsRefused) {
  for (const size_t at : {size_t{0}, size_t{1}}) {
    NodeResources links = Resources(kFast, kPlenty), hosts = links;
    links.links[0].profiles = {at};
    hosts.hosts[0].profiles = {at};
    for (const NodeResources& resources : {links, hosts}) {
      const absl::StatusCode code =
          PlanNode({SampleProfile(0)}, resources, {}).status().code();
      EXPECT_EQ(code, at == 0 ? absl::StatusCode::kOk
                              : absl::StatusCode::kInvalidArgument);
    }
  }
}

// Within the LP's precision everything fits, but a byte is missing.
TEST(PlanNode, AMissingByteOfHostMemoryCostsOneStepOfAlpha) {
  EXPECT_EQ(
      PlanOne(SampleProfile(0), Resources(kFast, Bytes(50'000'000))).alpha, 1);
  EXPECT_EQ(
      PlanOne(SampleProfile(0), Resources(kFast, Bytes(49'999'999))).alpha,
      4095. / 4096);
  // The same holds for a class ten times as large.
  plan::RankProfile large = SampleProfile(0);
  large.classes[1].bytes_per_layer = Bytes(40'000'000);
  EXPECT_EQ(PlanOne(large, Resources(kFast, Bytes(409'999'999))).alpha,
            4095. / 4096);
}

// An earlier round settled the profile; the rank's lease has the kept rows.
TEST(PlanNode, ASettledProfileIsPlannedAsItIs) {
  plan::RankProfile p = Keeper(Bytes(1 << 20));
  p.settled = true;
  p.limited_by = "host";
  p.classes[1].given.keep = 0.5;
  p.classes[1].given.swap = 0.25;
  p.classes[1].why = "as an earlier round found";
  const plan::RankPlan rank = PlanOne(p, Resources(1e6, kPlenty));
  EXPECT_EQ(rank.classes[1].fractions.keep, 0.5);
  EXPECT_EQ(rank.classes[1].why, "as an earlier round found");
  EXPECT_EQ(rank.alpha_limited_by, "host");
  p.transient_capacity = Bytes((1 << 20) - 1);
  EXPECT_EQ(MustPlan({p}, Resources(1e6, kPlenty)).limited_by, "gpu_memory");
  p.classes[1].given.swap.reset();
  EXPECT_EQ(std::string(PlanNode({p}, {}, {}).status().message()),
            "rank 0, class 'ffn_up': a settled profile leaves nothing to "
            "choose");
}

// Two jobs share one host. Memory that a settled job holds is not available to
// the other job.
TEST(PlanNode, JobsOfANodeShareItsHostMemory) {
  std::vector<plan::RankProfile> profiles = {SampleProfile(0),
                                             SampleProfile(0)};
  profiles[1].job = 1;
  profiles[1].classes[1].recompute_seconds = 0.02;
  NodeResources resources = Resources(kFast, Bytes(60'000'000), 2);
  plan::NodePlan plan = MustPlan(profiles, resources);
  EXPECT_EQ(plan.ranks[0].job, 0);
  EXPECT_EQ(plan.ranks[1].job, 1);
  EXPECT_GT(plan.ranks[1].alpha, plan.ranks[0].alpha);
  profiles[0].settled = true;
  profiles[0].classes[1].given.keep = 0;
  profiles[0].classes[1].given.swap = 0.75;
  plan = MustPlan(profiles, resources);
  EXPECT_EQ(plan.ranks[0].alpha, 0.75);
  EXPECT_EQ(plan.ranks[1].alpha, 0.25);
  // Job 1 gets a budget of its own.
  resources.hosts.push_back({"host budget of job x", Bytes(14'000'000), {1}});
  plan = MustPlan(profiles, resources);
  EXPECT_EQ(plan.ranks[1].alpha, 409. / 4096);
  EXPECT_THAT(plan.ranks[1].classes[1].why,
              HasSubstr("host budget of job x is full"));
}

// k and v of a rank have rows of all ranks, so a job has one alpha.
TEST(PlanNode, RanksOfUnequalSpeedGetOneAlphaThatUsesTheHostBudget) {
  std::vector<plan::RankProfile> profiles;
  for (uint64_t r = 0; r < 4; ++r) {
    profiles.push_back(SampleProfile(r));
    profiles.back().kinds[0].forward_layer_seconds =
        1 + 0.3 * static_cast<double>(r);
    profiles.back().classes[1].shared = true;
    profiles.back().classes[1].recompute_seconds =
        0.01 + 0.02 * static_cast<double>(r);
  }
  // 4 x (10 + 40 alpha) MB must fit into 128 MB.
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

// ---- Against one alpha for all ----------------------------------------------

using Swaps = std::vector<std::vector<double>>;  // [profile][class]

struct Cost {
  double step = 0;       // seconds of the slowest rank's step
  double recompute = 0;  // seconds of recomputation, all ranks together
};
// Evaluates the limits without the LP. Returns nullopt if a limit is exceeded.
std::optional<Cost> CostOf(const std::vector<plan::RankProfile>& profiles,
                           const NodeResources& resources, const Swaps& swaps) {
  const auto bytes = [](Bytes b) { return static_cast<double>(b.count()); };
  const auto sum = [&](size_t r, auto counts) {
    double total = 0;
    for (size_t c = 0; c < profiles[r].classes.size(); ++c) {
      const plan::SkeletalClass& skeletal = profiles[r].classes[c];
      if (counts(skeletal))
        total += bytes(skeletal.bytes_per_layer) * swaps[r][c];
    }
    return total;
  };
  for (const LinkCapacity& link : resources.links) {
    double d2h = 0, h2d = 0, both = 0;
    for (const size_t r : link.profiles) {
      const plan::RankProfile& p = profiles[r];
      const double copied =
          sum(r, [](const auto& c) { return !c.traffic_in_fixed; });
      const double tf = p.kinds[0].forward_layer_seconds;
      const double tb = p.kinds[0].backward_layer_seconds;
      d2h += std::max((copied + bytes(p.kinds[0].forward_d2h_fixed)) / tf,
                      bytes(p.kinds[0].backward_d2h_fixed) / tb);
      h2d += std::max(bytes(p.kinds[0].forward_h2d_fixed) / tf,
                      (copied + bytes(p.kinds[0].backward_h2d_fixed)) / tb);
      both += std::max((copied + bytes(p.kinds[0].forward_d2h_fixed +
                                       p.kinds[0].forward_h2d_fixed)) /
                           tf,
                       (copied + bytes(p.kinds[0].backward_d2h_fixed +
                                       p.kinds[0].backward_h2d_fixed)) /
                           tb);
    }
    if (d2h > link.d2h_bytes_per_second * (1 + 1e-6) ||
        h2d > link.h2d_bytes_per_second * (1 + 1e-6) ||
        both > link.both_bytes_per_second.value_or(1e18) * (1 + 1e-6)) {
      return std::nullopt;
    }
  }
  for (const plan::HostLimit& host : resources.hosts) {
    double held = 0;
    for (const size_t r : host.profiles) {
      const plan::RankProfile& p = profiles[r];
      held +=
          bytes(p.host_fixed) +
          static_cast<double>(p.kinds[0].layers - p.kinds[0].resident_layers) *
              sum(r, [](const auto&) { return true; });
    }
    if (held > bytes(host.bytes) + 1) return std::nullopt;
  }
  Cost cost;
  for (size_t r = 0; r < profiles.size(); ++r) {
    const plan::RankProfile& p = profiles[r];
    double added = 0;
    for (size_t c = 0; c < p.classes.size(); ++c) {
      added += p.classes[c].recompute_seconds * (1 - swaps[r][c]);
    }
    added *=
        static_cast<double>(p.kinds[0].layers - p.kinds[0].resident_layers);
    cost.recompute += added;
    cost.step =
        std::max(cost.step, static_cast<double>(p.kinds[0].layers) *
                                    (p.kinds[0].forward_layer_seconds +
                                     p.kinds[0].backward_layer_seconds) +
                                added);
  }
  return cost;
}

Swaps SwapsAtAlpha(const std::vector<plan::RankProfile>& profiles,
                   double alpha) {
  Swaps swaps;
  for (const plan::RankProfile& p : profiles) {
    swaps.emplace_back();
    for (const plan::SkeletalClass& c : p.classes) {
      swaps.back().push_back(c.must_swap ? 1 : alpha);
    }
  }
  return swaps;
}

class RandomFractions {
 public:
  explicit RandomFractions(std::mt19937& random) : random_(random) {
    const uint64_t ranks = 1 + random() % 4;
    for (uint64_t r = 0; r < ranks; ++r) profiles.push_back(Profile(r));
    for (int l = 0; l < 3; ++l) {
      LinkCapacity link{"link" + std::to_string(l), 0, 0, {}};
      link.d2h_bytes_per_second = Uniform(5e6, 6e7);
      link.h2d_bytes_per_second = Uniform(5e6, 6e7);
      if (random() % 2) link.both_bytes_per_second = Uniform(5e6, 6e7);
      for (size_t r = 0; r < ranks; ++r) {
        if (random() % 2) link.profiles.push_back(r);
      }
      resources.links.push_back(link);
    }
    for (uint64_t n = 0; n < 2; ++n) {
      plan::HostLimit host{
          "node " + std::to_string(n), Bytes(Whole(100e6, 600e6)), {}};
      for (size_t r = 0; r < ranks; ++r) {
        if (profiles[r].numa.value() == n) host.profiles.push_back(r);
      }
      resources.hosts.push_back(host);
    }
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
                         .recompute_seconds = Uniform(0, 0.01),
                         .traffic_in_fixed = true,
                         .shared = true});
    p.classes.push_back({.name = "norm2",
                         .bytes_per_layer = Bytes(Whole(0, 3e6)),
                         .recompute_seconds = Uniform(0, 0.001)});
    p.kinds[0].forward_layer_seconds = Uniform(0.3, 2);
    p.kinds[0].backward_layer_seconds = Uniform(0.3, 3);
    p.kinds[0].forward_d2h_fixed = Bytes(Whole(0, 3e6));
    p.kinds[0].forward_h2d_fixed = Bytes(Whole(0, 9e6));
    p.kinds[0].backward_d2h_fixed = Bytes(Whole(0, 9e6));
    p.kinds[0].backward_h2d_fixed = Bytes(Whole(0, 3e6));
    p.host_fixed = Bytes(Whole(0, 3e7));
    return p;
  }

  std::mt19937& random_;
};

// Returns the largest multiple of 1/4096 that is feasible as the alpha of all
// ranks.
std::optional<double> LargestAlpha(const RandomFractions& node) {
  for (int step = 4096; step >= 0; --step) {
    const Swaps swaps = SwapsAtAlpha(node.profiles, step / 4096.0);
    if (CostOf(node.profiles, node.resources, swaps)) return step / 4096.0;
  }
  return std::nullopt;
}

TEST(PlanNode, LimitsHoldAndNoNodeIsSlowerThanWithOneAlpha) {
  std::mt19937 random(9);
  int fits = 0, better = 0;
  for (int round = 0; round < 200; ++round) {
    const RandomFractions node(random);
    const std::optional<double> alpha = LargestAlpha(node);
    if (!alpha) continue;
    ++fits;
    const plan::NodePlan plan = MustPlan(node.profiles, node.resources);
    ASSERT_EQ(plan.infeasible, "");
    Swaps swaps;
    double step = 0;  // seconds that rounding down to 1/4096 may cost
    for (size_t r = 0; r < node.profiles.size(); ++r) {
      swaps.emplace_back();
      for (size_t c = 0; c < plan.ranks[r].classes.size(); ++c) {
        swaps.back().push_back(plan.ranks[r].classes[c].fractions.swap);
        step += 2 * 10 * node.profiles[r].classes[c].recompute_seconds / 4096;
      }
    }
    const auto joint = CostOf(node.profiles, node.resources, swaps);
    ASSERT_TRUE(joint) << "round " << round;
    const auto one = CostOf(node.profiles, node.resources,
                            SwapsAtAlpha(node.profiles, *alpha));
    EXPECT_LE(joint->step, one->step + step) << "round " << round;
    if (joint->step > one->step - 1e-9) {
      EXPECT_LE(joint->recompute, one->recompute + step) << "round " << round;
    }
    better += joint->recompute < one->recompute * 0.9;
  }
  EXPECT_GT(fits, 100);
  EXPECT_GT(better, 30);
}

}  // namespace
}  // namespace sluice::planner
