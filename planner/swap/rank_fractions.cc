#include "planner/swap/rank_fractions.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "planner/swap/cut_fractions.h"
#include "planner/swap/explain.h"
#include "planner/swap/given_fractions.h"
#include "planner/swap/given_node.h"
#include "planner/swap/refusals.h"
#include "planner/swap/swap_accounting.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using plan::HostLimit;
using plan::LinkCapacity;
using plan::NodeResources;
using plan::RankProfile;
using plan::SkeletalClass;

constexpr double kUnlimitedBytes = 1e18;
// A forward that was not measured hides nothing: its seconds count for none.
constexpr double kUnmeasured = 1e-9;

// ---- The node as the LP takes it -------------------------------------------

class Node {
 public:
  Node(const std::vector<RankProfile>& profiles, const NodeResources& resources,
       const std::vector<Bytes>& gpu_room)
      : given_{profiles, resources, gpu_room, {}} {
    for (const RankProfile& p : profiles) {
      given_.given_only.push_back(GivenOnly(p));
      hides_nothing_.emplace_back();
      for (size_t k = 0; k < p.kinds.size(); ++k) {
        hides_nothing_.back().push_back(HidesNothing(p, k));
      }
    }
    // Host memory is limited by name; a rank of the LP wants a NUMA node.
    problem_.numa.push_back({0, kUnlimitedBytes});
    for (size_t r = 0; r < profiles.size(); ++r) AddRank(r);
    for (const LinkCapacity& link : resources.links) AddLink(link);
    for (const HostLimit& host : resources.hosts) AddHost(host);
  }

  const NodeSwapProblem& problem() const { return problem_; }
  const GivenNode& given() const { return given_; }
  bool hides_nothing(size_t r, size_t k) const { return hides_nothing_[r][k]; }

 private:
  void AddRank(size_t r);
  void AddLink(const LinkCapacity& link);
  void AddHost(const HostLimit& host);
  NodeSwapProblem::Tensor TensorOf(size_t r, const SkeletalClass& c) const;
  bool OneOfJobHidesNothing(int64_t job, const std::string& kind) const;

  GivenNode given_;
  NodeSwapProblem problem_;
  std::vector<std::vector<bool>> hides_nothing_;  // rank, kind
};

bool Node::OneOfJobHidesNothing(int64_t job, const std::string& kind) const {
  for (size_t r = 0; r < given_.profiles.size(); ++r) {
    const std::optional<size_t> k = plan::FindKind(given_.profiles[r], kind);
    if (k && hides_nothing_[r][*k] && given_.profiles[r].job == job)
      return true;
  }
  return false;
}

NodeSwapProblem::Tensor Node::TensorOf(size_t r, const SkeletalClass& c) const {
  using Must = NodeSwapProblem::Must;
  const RankProfile& p = given_.profiles[r];
  const size_t kind = *plan::FindKind(p, c.kind);
  NodeSwapProblem::Tensor tensor{
      .name = c.name,
      .kind = kind,
      .bytes = AsDouble(c.bytes_per_layer),
      .recompute_s = c.recompute_seconds,
      .must = c.must_swap ? Must::kSwap : Must::kNothing,
      // Copies without a window show; no link counts them.
      .traffic_in_fixed = c.traffic_in_fixed || hides_nothing_[r][kind],
      .can_keep = c.can_keep};
  if (c.must_swap) return tensor;
  tensor.given = GivenOf(p, c);
  if (c.shared) {
    tensor.shared =
        fmt::format("{} of job {}", plan::FullName(c.kind, c.name), p.job);
  }
  // Where a copy can't hide none is made that need not be.
  const bool no_copies =
      c.shared ? OneOfJobHidesNothing(p.job, c.kind) : hides_nothing_[r][kind];
  if (no_copies && !c.traffic_in_fixed && !tensor.given.swap) {
    tensor.given.swap = 0;
  }
  return tensor;
}

NodeSwapProblem::Kind KindOf(const plan::LayerKind& k, bool hides_nothing) {
  NodeSwapProblem::Kind kind{
      .name = k.name,
      .layers = std::max<int64_t>(k.layers, 1),
      .forward_layer_s = std::max(k.forward_layer_seconds, kUnmeasured),
      .backward_layer_s = k.backward_layer_seconds};
  kind.resident_layers = std::min(k.resident_layers, kind.layers);
  if (hides_nothing) return kind;
  kind.forward_d2h_fixed_bytes = AsDouble(k.forward_d2h_fixed);
  kind.forward_h2d_fixed_bytes = AsDouble(k.forward_h2d_fixed);
  kind.backward_d2h_fixed_bytes = AsDouble(k.backward_d2h_fixed);
  kind.backward_h2d_fixed_bytes = AsDouble(k.backward_h2d_fixed);
  return kind;
}

void Node::AddRank(size_t r) {
  const RankProfile& p = given_.profiles[r];
  NodeSwapProblem::Rank rank;
  rank.name = RankName(given_.profiles, r);
  rank.gpu_budget_bytes =
      p.settled ? kUnlimitedBytes : AsDouble(given_.gpu_room[r]);
  rank.kinds.clear();
  for (size_t k = 0; k < p.kinds.size(); ++k) {
    rank.kinds.push_back(KindOf(p.kinds[k], hides_nothing_[r][k]));
  }
  rank.host_fixed_bytes = AsDouble(p.host_fixed);
  for (const SkeletalClass& c : p.classes) {
    rank.tensors.push_back(TensorOf(r, c));
  }
  problem_.ranks.push_back(std::move(rank));
}

void Node::AddLink(const LinkCapacity& link) {
  if (link.d2h_bytes_per_second <= 0 || link.h2d_bytes_per_second <= 0) return;
  for (const size_t r : link.profiles) {
    problem_.ranks[r].links.push_back(link.name);
  }
  problem_.links.push_back({.name = link.name,
                            .h2d_bytes_per_s = link.h2d_bytes_per_second,
                            .d2h_bytes_per_s = link.d2h_bytes_per_second,
                            .total_bytes_per_s = link.both_bytes_per_second});
}

void Node::AddHost(const HostLimit& host) {
  for (const size_t r : host.profiles) {
    problem_.ranks[r].hosts.push_back(host.name);
  }
  problem_.hosts.push_back({host.name, AsDouble(host.bytes)});
}

// ---- The plan -------------------------------------------------------------

// The swapped share of the free classes' bytes, of all layers.
double AlphaOf(const RankProfile& p, const Fractions& fractions) {
  double swapped = 0, bytes = 0;
  std::set<double> all;
  for (size_t i = 0; i < p.classes.size(); ++i) {
    if (p.classes[i].must_swap) continue;
    const double size =
        static_cast<double>(plan::KindOf(p, p.classes[i]).layers) *
        AsDouble(p.classes[i].bytes_per_layer);
    swapped += size * fractions[i].swap;
    bytes += size;
    if (size > 0) all.insert(fractions[i].swap);
  }
  if (all.size() == 1) return *all.begin();  // to the digit
  return bytes > 0 ? std::clamp(swapped / bytes, 0.0, 1.0) : 1;
}

RankFractions Explained(const RankProfile& p, const Fractions& fractions,
                        const std::vector<FullRows>& full, bool stalls) {
  RankFractions rank{.classes = {},
                     .alpha = AlphaOf(p, fractions),
                     .alpha_limited_by = LimitedBy(p, fractions, full),
                     .host_bytes = HostBytesOf(p, fractions)};
  std::vector<std::string> why = WhyOf(p, fractions, full, stalls);
  for (size_t i = 0; i < p.classes.size(); ++i) {
    rank.classes.push_back({p.classes[i].name, fractions[i], std::move(why[i]),
                            p.classes[i].kind});
  }
  return rank;
}

}  // namespace

absl::StatusOr<FractionsPlan> PlanFractions(
    const std::vector<RankProfile>& profiles, const NodeResources& resources,
    const std::vector<Bytes>& gpu_room) {
  const Node node(profiles, resources, gpu_room);
  FractionsPlan plan;
  if (std::optional<Refusal> refusal = RefusalOf(node.given())) {
    plan.infeasible = std::move(refusal->why);
    plan.limited_by = std::move(refusal->limited_by);
    const FullRows nothing{.own = {"host", "nothing fits"}, .job = {}};
    for (size_t r = 0; r < profiles.size(); ++r) {
      const std::vector<FullRows> full(profiles[r].kinds.size(), nothing);
      plan.ranks.push_back(Explained(profiles[r], node.given().given_only[r],
                                     full,
                                     /*stalls=*/false));
    }
    return plan;
  }
  SLUICE_ASSIGN_OR_RETURN(const NodeSwapResult result,
                          PlanNodeSwap(node.problem()));
  if (!result.feasible) {
    return absl::InternalError(
        "the swap plan does not fit, at fractions that do");
  }
  plan.limits = LimitsOf(node.problem(), result);
  const std::vector<Fractions> all =
      CutFractions(node.given(), node.problem(), result);
  for (size_t r = 0; r < profiles.size(); ++r) {
    std::vector<FullRows> full =
        FullRowsOf(profiles, node.problem(), result, r);
    for (size_t k = 0; k < full.size(); ++k) {
      if (!node.hides_nothing(r, k) || !full[k].own.kind.empty()) continue;
      full[k].own = {"bandwidth",
                     fmt::format("a pass of rank {} has no measured window "
                                 "that could hide a copy",
                                 profiles[r].rank.value())};
    }
    plan.ranks.push_back(
        Explained(profiles[r], all[r], full, result.hidden_step_s.has_value()));
  }
  return plan;
}

}  // namespace sluice::planner
