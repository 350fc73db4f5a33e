#include "planner/swap/rank_fractions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

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
// Seconds of the window of a forward that was not measured.
constexpr double kUnmeasured = 1e-9;

// ---- The profiles as an LP's problem ----------------------------------------

struct Node {
  const std::vector<RankProfile>& profiles;
  const NodeResources& resources;
  const std::vector<Bytes>& gpu_room;            // by rank, as in PlanFractions
  std::vector<Fractions> given_only;             // by rank, from GivenOnly
  std::vector<std::vector<bool>> hides_nothing;  // rank, kind
  NodeSwapProblem problem;

  Node(const std::vector<RankProfile>& profiles, const NodeResources& resources,
       const std::vector<Bytes>& gpu_room);
  void AddRank(size_t r);
  void AddLink(const LinkCapacity& link);
  NodeSwapProblem::Tensor TensorOf(size_t r, const SkeletalClass& c) const;
  bool OneOfJobHidesNothing(int64_t job, const std::string& kind) const;
};

bool Node::OneOfJobHidesNothing(int64_t job, const std::string& kind) const {
  for (size_t r = 0; r < profiles.size(); ++r) {
    const std::optional<size_t> k = plan::FindKind(profiles[r], kind);
    if (k && hides_nothing[r][*k] && profiles[r].job == job) return true;
  }
  return false;
}

NodeSwapProblem::Tensor Node::TensorOf(size_t r, const SkeletalClass& c) const {
  using Must = NodeSwapProblem::Must;
  const RankProfile& p = profiles[r];
  const size_t kind = *plan::FindKind(p, c.kind);
  NodeSwapProblem::Tensor tensor{
      .name = c.name,
      .kind = kind,
      .bytes = AsDouble(c.bytes_per_layer),
      .recompute_s = c.recompute_seconds,
      .must = c.must_swap ? Must::kSwap : Must::kNothing,
      // Without a window a kind's copies are exposed: no link's row counts
      // them.
      .traffic_in_fixed = c.traffic_in_fixed || hides_nothing[r][kind],
      .can_keep = c.can_keep};
  if (c.must_swap) return tensor;
  tensor.given = GivenOf(p, c);
  if (c.shared) {
    tensor.shared =
        fmt::format("{} of job {}", plan::FullName(c.kind, c.name), p.job);
  }
  // If copies cannot be hidden, only mandatory copies are made.
  const bool no_copies =
      c.shared ? OneOfJobHidesNothing(p.job, c.kind) : hides_nothing[r][kind];
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
  const RankProfile& p = profiles[r];
  NodeSwapProblem::Rank rank;
  rank.name = RankName(profiles, r);
  rank.gpu_budget_bytes = p.settled ? kUnlimitedBytes : AsDouble(gpu_room[r]);
  rank.kinds.clear();
  for (size_t k = 0; k < p.kinds.size(); ++k) {
    rank.kinds.push_back(KindOf(p.kinds[k], hides_nothing[r][k]));
  }
  rank.host_fixed_bytes = AsDouble(p.host_fixed);
  for (const SkeletalClass& c : p.classes) {
    rank.tensors.push_back(TensorOf(r, c));
  }
  problem.ranks.push_back(std::move(rank));
}

void Node::AddLink(const LinkCapacity& link) {
  for (const size_t r : link.profiles) {
    problem.ranks[r].links.push_back(link.name);
  }
  problem.links.push_back({.name = link.name,
                           .h2d_bytes_per_s = link.h2d_bytes_per_second,
                           .d2h_bytes_per_s = link.d2h_bytes_per_second,
                           .total_bytes_per_s = link.both_bytes_per_second});
}

Node::Node(const std::vector<RankProfile>& profiles,
           const NodeResources& resources, const std::vector<Bytes>& gpu_room)
    : profiles(profiles), resources(resources), gpu_room(gpu_room) {
  for (const RankProfile& p : profiles) {
    given_only.push_back(GivenOnly(p));
    hides_nothing.emplace_back();
    for (size_t k = 0; k < p.kinds.size(); ++k) {
      hides_nothing.back().push_back(HidesNothing(p, k));
    }
  }
  // Host memory is limited by resources.hosts, so all ranks are on one NUMA
  // node without a limit.
  problem.numa.push_back({0, kUnlimitedBytes});
  for (size_t r = 0; r < profiles.size(); ++r) AddRank(r);
  for (const LinkCapacity& link : resources.links) AddLink(link);
  for (const HostLimit& host : resources.hosts) {
    for (const size_t r : host.profiles) {
      problem.ranks[r].hosts.push_back(host.name);
    }
    problem.hosts.push_back({host.name, AsDouble(host.bytes)});
  }
}

// ---- Given fractions that do not fit ----------------------------------------

std::string Amount(double bytes) {
  const Bytes whole(static_cast<int64_t>(std::ceil(bytes)));
  return fmt::format("{} ({} bytes)", FormatBytes(whole), whole.count());
}

// Returns why the limit's ranks need more host memory than it has, or "".
std::string TooMuchHost(const Node& node, const HostLimit& host) {
  Bytes need;
  double fixed = 0, slope = 0;  // bytes = fixed + the user's alpha * slope
  std::optional<double> flag;
  bool asked = false;
  for (const size_t r : host.profiles) {
    const RankProfile& p = node.profiles[r];
    const Bytes least = HostBytesOf(p, node.given_only[r]);
    need += least;
    if (p.alpha < 0) {
      fixed += AsDouble(least);
      for (const SkeletalClass& c : p.classes)
        asked |= c.given.swap.value_or(0) > 0;
      continue;
    }
    flag = std::max(flag.value_or(0), p.alpha);
    RankProfile other = p;
    other.alpha = 0;
    const double at_zero = AsDouble(HostBytesOf(other, GivenOnly(other)));
    fixed += at_zero;
    if (p.alpha > 0) slope += (AsDouble(least) - at_zero) / p.alpha;
  }
  if (need <= host.bytes) return "";
  std::string hint;
  const double largest =
      slope > 0 ? (AsDouble(host.bytes) - fixed) / slope : -1;
  if (flag.value_or(0) > 0 && largest >= 0) {
    hint = fmt::format("the largest alpha that fits is {:.4f}, or ",
                       std::floor(largest * 1e4) / 1e4);
  }
  const std::string what = flag    ? fmt::format("alpha {} needs", *flag)
                           : asked ? "what was asked for needs"
                                   : "alpha 0 (the least) needs";
  const double percent =
      std::floor(100 * AsDouble(host.bytes) / AsDouble(need));
  if (percent >= 1) {
    hint += fmt::format(
        "shorten the sequence to about {:.0f} % of this length, or ", percent);
  }
  return fmt::format(
      "{} {} of host memory for {} rank(s), the {} has {}: {}raise the host "
      "budget",
      what, Amount(AsDouble(need)), host.profiles.size(), host.name,
      Amount(AsDouble(host.bytes)), hint);
}

std::string TooMuchKept(const Node& node, size_t r) {
  const RankProfile& p = node.profiles[r];
  const Bytes kept = KeptBytesOf(p, node.given_only[r]);
  if (p.settled || kept <= node.gpu_room[r]) return "";
  return fmt::format(
      "rank {} is asked to keep {} on its GPU, which has {} left beside the "
      "transient buffers: keep less, take smaller chunks or a larger lease",
      p.rank.value(), Amount(AsDouble(kept)),
      Amount(AsDouble(node.gpu_room[r])));
}

struct Refusal {
  std::string why;         // one line: the need, the limit, what to do
  std::string limited_by;  // value for NodePlan::limited_by
};

// Returns the first limit that the given fractions exceed, host memory before
// GPUs, or nullopt if they fit.
std::optional<Refusal> RefusalOf(const Node& node) {
  for (const HostLimit& host : node.resources.hosts) {
    std::string why = TooMuchHost(node, host);
    if (!why.empty()) return Refusal{std::move(why), "host_memory"};
  }
  for (size_t r = 0; r < node.profiles.size(); ++r) {
    std::string why = TooMuchKept(node, r);
    if (!why.empty()) return Refusal{std::move(why), "gpu_memory"};
  }
  return std::nullopt;
}

// ---- From the LP's fractions to the plan's ----------------------------------

// Chosen fractions are rounded down to multiples of this, so that the plan is
// the same on every machine even if the LP's last digits differ.
constexpr double kStep = 1.0 / 4096;
constexpr double kUnlimitedRate = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-6;    // a smaller fraction is rounding
constexpr double kCutDigits = 1e-7;  // tolerance for link rates

// Rounds down to a multiple of kStep. A fraction less than 1e-4 kStep below a
// multiple, as an LP's rounding may leave it, becomes that multiple.
double CutDown(double fraction) {
  const double steps = std::floor(fraction / kStep + 1e-4);
  return std::clamp(steps * kStep, 0.0, 1.0);
}

double Most(const std::vector<CopyRates>& kinds, double CopyRates::*way) {
  double most = 0;
  for (const CopyRates& rates : kinds) most = std::max(most, rates.*way);
  return most;
}

// Returns whether the ranks' rates stay within the link's capacity, whichever
// kinds run at the same time. If mandatory copies exceed the capacity, their
// rate is the limit.
bool LinkHolds(const Node& node, const LinkCapacity& link,
               const std::vector<Fractions>& all) {
  std::vector<std::vector<CopyRates>> used, least;  // rank of the link, kind
  for (const size_t r : link.profiles) {
    const NodeSwapProblem::Rank& rank = node.problem.ranks[r];
    used.push_back(RatesOfKinds(rank, all[r]));
    least.push_back(RatesOfKinds(rank, node.given_only[r]));
  }
  const auto holds = [&](double CopyRates::*way, double capacity) {
    double all_used = 0, all_least = 0;
    for (size_t i = 0; i < used.size(); ++i) {
      all_used += Most(used[i], way), all_least += Most(least[i], way);
    }
    for (size_t i = 0; i < used.size(); ++i) {
      const double others = all_used - Most(used[i], way);
      const double others_least = all_least - Most(least[i], way);
      for (size_t k = 0; k < used[i].size(); ++k) {
        const double most = std::max(capacity, least[i][k].*way + others_least);
        if (used[i][k].*way + others > most * (1 + kCutDigits)) return false;
      }
    }
    return true;
  };
  return holds(&CopyRates::d2h, link.d2h_bytes_per_second) &&
         holds(&CopyRates::h2d, link.h2d_bytes_per_second) &&
         holds(&CopyRates::total,
               link.both_bytes_per_second.value_or(kUnlimitedRate));
}

// With `stalls`, copies may be exposed, so links are not checked.
bool FitsResources(const Node& node, const std::vector<Fractions>& all,
                   bool stalls) {
  for (const HostLimit& host : node.resources.hosts) {
    Bytes used;
    for (const size_t r : host.profiles) {
      used += HostBytesOf(node.profiles[r], all[r]);
    }
    if (used > host.bytes) return false;
  }
  for (size_t r = 0; r < node.profiles.size(); ++r) {
    if (!node.profiles[r].settled &&
        KeptBytesOf(node.profiles[r], all[r]) > node.gpu_room[r]) {
      return false;
    }
  }
  for (const LinkCapacity& link : node.resources.links) {
    if (!stalls && !LinkHolds(node, link, all)) return false;
  }
  return true;
}

// Rounds the LP's fractions down, then lowers them by `steps_back` steps. With
// `fill`, a class of which the LP recomputes nothing swaps all that is not
// kept.
std::vector<Fractions> CutAll(const Node& node, const NodeSwapResult& result,
                              bool fill, int steps_back) {
  std::vector<Fractions> all = node.given_only;
  for (size_t r = 0; r < node.profiles.size(); ++r) {
    for (size_t i = 0; i < all[r].size(); ++i) {
      const NodeSwapProblem::Tensor& tensor = node.problem.ranks[r].tensors[i];
      if (tensor.must != NodeSwapProblem::Must::kNothing) continue;
      const plan::TokenFractions& from = result.ranks[r].tensors[i];
      plan::TokenFractions& to = all[r][i];
      const double back = steps_back * kStep;
      if (!tensor.given.keep)
        to.keep = std::max(0.0, CutDown(from.keep) - back);
      const double left = 1 - to.keep;
      const bool whole = fill && from.recompute < kNothing;
      if (!tensor.given.swap) {
        to.swap = whole ? left : std::max(0.0, CutDown(from.swap) - back);
      }
      to.recompute = std::max(0.0, left - to.swap);
    }
  }
  return all;
}

// Returns the LP's answer in multiples of 1/4096, within every limit to the
// byte, or only the given fractions if no rounding fits. REQUIRES: RefusalOf
// returns nullopt.
std::vector<Fractions> CutFractions(const Node& node,
                                    const NodeSwapResult& result) {
  std::vector<Fractions> all = CutAll(node, result, /*fill=*/true, 0);
  const bool stalls = result.hidden_step_s.has_value();
  if (FitsResources(node, all, stalls)) return all;
  // Fractions may still be too high, by an LP's rounding or by `fill`.
  for (int back = 0; back < 64; ++back) {
    all = CutAll(node, result, /*fill=*/false, back);
    if (FitsResources(node, all, stalls)) return all;
  }
  return node.given_only;
}

// ---- The plan -------------------------------------------------------------

// Returns the swapped fraction of the bytes of all classes without must_swap.
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
  if (all.size() == 1) return *all.begin();  // exact
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
  if (std::optional<Refusal> refusal = RefusalOf(node)) {
    plan.infeasible = std::move(refusal->why);
    plan.limited_by = std::move(refusal->limited_by);
    const FullRows nothing{.own = {"host", "nothing fits"}, .job = {}};
    for (size_t r = 0; r < profiles.size(); ++r) {
      const std::vector<FullRows> full(profiles[r].kinds.size(), nothing);
      plan.ranks.push_back(
          Explained(profiles[r], node.given_only[r], full, /*stalls=*/false));
    }
    return plan;
  }
  SLUICE_ASSIGN_OR_RETURN(const NodeSwapResult result,
                          PlanNodeSwap(node.problem));
  if (!result.feasible) {
    return absl::InternalError(
        "the swap plan does not fit, although the given fractions do");
  }
  plan.limits = LimitsOf(node.problem, result);
  const std::vector<Fractions> all = CutFractions(node, result);
  for (size_t r = 0; r < profiles.size(); ++r) {
    std::vector<FullRows> full = FullRowsOf(profiles, node.problem, result, r);
    for (size_t k = 0; k < full.size(); ++k) {
      if (!node.hides_nothing[r][k] || !full[k].own.kind.empty()) continue;
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
