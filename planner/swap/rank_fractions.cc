#include "planner/swap/rank_fractions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "planner/swap/explain.h"
#include "planner/swap/given_fractions.h"
#include "planner/swap/swap_accounting.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using plan::HostLimit;
using plan::LinkCapacity;
using plan::NodeResources;
using plan::RankProfile;
using plan::SkeletalClass;

// What is chosen is cut to multiples of this: no harm to a plan, and equal on
// every machine whatever the last digits of an LP are.
constexpr double kStep = 1.0 / 4096;
constexpr double kUnlimited = 1e18;
// A fraction of digits.
constexpr double kNothing = 1e-6;
// Links are measured; digits of a rate are none of theirs.
constexpr double kDigits = 1e-7;

double AsDouble(Bytes bytes) { return static_cast<double>(bytes.count()); }

std::string Amount(double bytes) {
  const Bytes whole(static_cast<int64_t>(std::ceil(bytes)));
  return fmt::format("{} ({} bytes)", FormatBytes(whole), whole.count());
}

// Down to a step, but for what an LP's digits are short of one.
double CutDown(double fraction) {
  const double steps = std::floor(fraction / kStep + 1e-4);
  return std::clamp(steps * kStep, 0.0, 1.0);
}

// ---- The node as the LP takes it -------------------------------------------

class Node {
 public:
  Node(const std::vector<RankProfile>& profiles, const NodeResources& resources,
       const std::vector<Bytes>& gpu_room)
      : profiles_(profiles), resources_(resources), room_(gpu_room) {
    for (const RankProfile& p : profiles) {
      given_only_.push_back(GivenOnly(p));
      hides_nothing_.push_back(HidesNothing(p));
    }
    // Host memory is limited by name; a rank of the LP wants a NUMA node.
    problem_.numa.push_back({0, kUnlimited});
    for (size_t r = 0; r < profiles.size(); ++r) AddRank(r);
    for (const LinkCapacity& link : resources.links) AddLink(link);
    for (const HostLimit& host : resources.hosts) AddHost(host);
  }

  const NodeSwapProblem& problem() const { return problem_; }
  const Fractions& given_only(size_t r) const { return given_only_[r]; }
  bool hides_nothing(size_t r) const { return hides_nothing_[r]; }
  // One line where even what is given does not fit by itself.
  void Refuse(FractionsPlan* plan) const;
  // The LP's answer, cut, within every limit.
  std::vector<Fractions> Cut(const NodeSwapResult& result) const;

 private:
  void AddRank(size_t r);
  void AddLink(const LinkCapacity& link);
  void AddHost(const HostLimit& host);
  NodeSwapProblem::Tensor TensorOf(size_t r, const SkeletalClass& c) const;
  bool OneOfJobHidesNothing(int64_t job) const;
  CopyRates RatesOn(const LinkCapacity& link,
                    const std::vector<Fractions>& all) const;
  bool Fits(const std::vector<Fractions>& all) const;
  std::vector<Fractions> CutAll(const NodeSwapResult& result, bool fill,
                                int steps_back) const;
  std::string TooMuchHost(const HostLimit& host) const;
  std::string TooMuchKept(size_t r) const;

  const std::vector<RankProfile>& profiles_;
  const NodeResources& resources_;
  const std::vector<Bytes>& room_;
  NodeSwapProblem problem_;
  std::vector<Fractions> given_only_;
  std::vector<bool> hides_nothing_;
};

bool Node::OneOfJobHidesNothing(int64_t job) const {
  for (size_t r = 0; r < profiles_.size(); ++r) {
    if (hides_nothing_[r] && profiles_[r].job == job) return true;
  }
  return false;
}

NodeSwapProblem::Tensor Node::TensorOf(size_t r, const SkeletalClass& c) const {
  using Must = NodeSwapProblem::Must;
  const RankProfile& p = profiles_[r];
  NodeSwapProblem::Tensor tensor{
      .name = c.name,
      .bytes = AsDouble(c.bytes_per_layer),
      .recompute_s = c.recompute_seconds,
      .must = c.must_swap ? Must::kSwap : Must::kNothing,
      .traffic_in_fixed = c.traffic_in_fixed,
      .can_keep = c.can_keep};
  if (c.must_swap) return tensor;
  tensor.given = GivenOf(p, c);
  if (c.shared) tensor.shared = fmt::format("{} of job {}", c.name, p.job);
  // Where a copy can't hide none is made that need not be.
  const bool no_copies =
      c.shared ? OneOfJobHidesNothing(p.job) : hides_nothing_[r];
  if (no_copies && !c.traffic_in_fixed && !tensor.given.swap) {
    tensor.given.swap = 0;
  }
  return tensor;
}

void Node::AddRank(size_t r) {
  const RankProfile& p = profiles_[r];
  NodeSwapProblem::Rank rank;
  rank.name = RankName(profiles_, r);
  rank.layers = std::max<int64_t>(p.layers, 1);
  rank.resident_layers = std::min(p.resident_layers, rank.layers);
  rank.gpu_budget_bytes = p.settled ? kUnlimited : AsDouble(room_[r]);
  const auto window = [](double seconds) { return seconds > 0 ? seconds : 1; };
  rank.forward_layer_s = window(p.forward_layer_seconds);
  rank.backward_layer_s = window(p.backward_layer_seconds);
  rank.forward_d2h_fixed_bytes = AsDouble(p.forward_d2h_fixed);
  rank.forward_h2d_fixed_bytes = AsDouble(p.forward_h2d_fixed);
  rank.backward_d2h_fixed_bytes = AsDouble(p.backward_d2h_fixed);
  rank.backward_h2d_fixed_bytes = AsDouble(p.backward_h2d_fixed);
  rank.host_fixed_bytes = AsDouble(p.host_fixed);
  for (const SkeletalClass& c : p.classes) {
    rank.tensors.push_back(TensorOf(r, c));
  }
  problem_.ranks.push_back(std::move(rank));
}

CopyRates Node::RatesOn(const LinkCapacity& link,
                        const std::vector<Fractions>& all) const {
  CopyRates sum;
  for (const size_t r : link.profiles) {
    if (hides_nothing_[r]) continue;
    const CopyRates rates =
        RatesOf(problem_.ranks[r], LayerOf(profiles_[r], all[r]).copied);
    sum.d2h += rates.d2h, sum.h2d += rates.h2d;
  }
  return sum;
}

// A link that copies which must be made overload already is no refusal: those
// copies show, and nothing is added to them.
void Node::AddLink(const LinkCapacity& link) {
  if (link.d2h_bytes_per_second <= 0 || link.h2d_bytes_per_second <= 0) return;
  for (const size_t r : link.profiles) {
    if (!hides_nothing_[r]) problem_.ranks[r].links.push_back(link.name);
  }
  const CopyRates least = RatesOn(link, given_only_);
  problem_.links.push_back(
      {.name = link.name,
       .h2d_bytes_per_s = std::max(link.h2d_bytes_per_second, least.h2d),
       .d2h_bytes_per_s = std::max(link.d2h_bytes_per_second, least.d2h),
       .total_bytes_per_s = std::nullopt});
}

void Node::AddHost(const HostLimit& host) {
  for (const size_t r : host.profiles) {
    problem_.ranks[r].hosts.push_back(host.name);
  }
  problem_.hosts.push_back({host.name, AsDouble(host.bytes)});
}

// ---- Refusals --------------------------------------------------------------

// One line on host memory whose ranks need too much even at their least;
// empty when they fit.
std::string Node::TooMuchHost(const HostLimit& host) const {
  Bytes need;
  double fixed = 0, slope = 0;  // of what a user's alpha decides
  std::optional<double> flag;
  bool asked = false;
  for (const size_t r : host.profiles) {
    const RankProfile& p = profiles_[r];
    const Bytes least = HostBytesOf(p, given_only_[r]);
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
  return fmt::format(
      "{} {} of host memory for {} rank(s), the {} has {}: {}shorten the "
      "sequence to about {:.0f} % of this length, or raise the host budget",
      what, Amount(AsDouble(need)), host.profiles.size(), host.name,
      Amount(AsDouble(host.bytes)), hint,
      std::floor(100 * AsDouble(host.bytes) / AsDouble(need)));
}

std::string Node::TooMuchKept(size_t r) const {
  const RankProfile& p = profiles_[r];
  const Bytes kept = KeptBytesOf(p, given_only_[r]);
  if (p.settled || kept <= room_[r]) return "";
  return fmt::format(
      "rank {} is asked to keep {} on its GPU, which has {} left beside the "
      "transient buffers: keep less, take smaller chunks or a larger lease",
      p.rank.value(), Amount(AsDouble(kept)), Amount(AsDouble(room_[r])));
}

void Node::Refuse(FractionsPlan* plan) const {
  for (const HostLimit& host : resources_.hosts) {
    if (!plan->infeasible.empty()) return;
    plan->infeasible = TooMuchHost(host);
    if (!plan->infeasible.empty()) plan->limited_by = "host_memory";
  }
  for (size_t r = 0; r < profiles_.size(); ++r) {
    if (!plan->infeasible.empty()) return;
    plan->infeasible = TooMuchKept(r);
    if (!plan->infeasible.empty()) plan->limited_by = "gpu_memory";
  }
}

// ---- From the LP's fractions to a plan's -----------------------------------

bool Node::Fits(const std::vector<Fractions>& all) const {
  for (const HostLimit& host : resources_.hosts) {
    Bytes used;
    for (const size_t r : host.profiles) {
      used += HostBytesOf(profiles_[r], all[r]);
    }
    if (used > host.bytes) return false;
  }
  for (size_t r = 0; r < profiles_.size(); ++r) {
    if (!profiles_[r].settled && KeptBytesOf(profiles_[r], all[r]) > room_[r]) {
      return false;
    }
  }
  for (const LinkCapacity& link : resources_.links) {
    const CopyRates used = RatesOn(link, all);
    const CopyRates least = RatesOn(link, given_only_);
    const auto over = [](double use, double capacity, double floor) {
      return use > std::max(capacity, floor) * (1 + kDigits);
    };
    if (over(used.d2h, link.d2h_bytes_per_second, least.d2h) ||
        over(used.h2d, link.h2d_bytes_per_second, least.h2d)) {
      return false;
    }
  }
  return true;
}

// `fill`: what the LP recomputes nothing of is swapped up to the last row.
std::vector<Fractions> Node::CutAll(const NodeSwapResult& result, bool fill,
                                    int steps_back) const {
  std::vector<Fractions> all = given_only_;
  for (size_t r = 0; r < profiles_.size(); ++r) {
    for (size_t i = 0; i < all[r].size(); ++i) {
      const NodeSwapProblem::Tensor& tensor = problem_.ranks[r].tensors[i];
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

std::vector<Fractions> Node::Cut(const NodeSwapResult& result) const {
  std::vector<Fractions> all = CutAll(result, /*fill=*/true, 0);
  if (Fits(all)) return all;
  // Digits may be a step too many.
  for (int back = 0; back < 64; ++back) {
    all = CutAll(result, /*fill=*/false, back);
    if (Fits(all)) return all;
  }
  return given_only_;
}

// The swapped share of the free classes' bytes.
double AlphaOf(const RankProfile& p, const Fractions& fractions) {
  double swapped = 0, bytes = 0;
  std::set<double> all;
  for (size_t i = 0; i < p.classes.size(); ++i) {
    if (p.classes[i].must_swap) continue;
    const double size = AsDouble(p.classes[i].bytes_per_layer);
    swapped += size * fractions[i].swap;
    bytes += size;
    if (size > 0) all.insert(fractions[i].swap);
  }
  if (all.size() == 1) return *all.begin();  // to the digit
  return bytes > 0 ? std::clamp(swapped / bytes, 0.0, 1.0) : 1;
}

RankFractions Explained(const RankProfile& p, const Fractions& fractions,
                        const FullRows& full) {
  RankFractions rank{.classes = {},
                     .alpha = AlphaOf(p, fractions),
                     .alpha_limited_by = LimitedBy(p, fractions, full),
                     .host_bytes = HostBytesOf(p, fractions)};
  std::vector<std::string> why = WhyOf(p, fractions, full);
  for (size_t i = 0; i < p.classes.size(); ++i) {
    rank.classes.push_back(
        {p.classes[i].name, fractions[i], std::move(why[i])});
  }
  return rank;
}

}  // namespace

absl::StatusOr<FractionsPlan> PlanFractions(
    const std::vector<RankProfile>& profiles, const NodeResources& resources,
    const std::vector<Bytes>& gpu_room) {
  const Node node(profiles, resources, gpu_room);
  FractionsPlan plan;
  node.Refuse(&plan);
  if (!plan.infeasible.empty()) {
    const FullRows nothing{.own = {"host", "nothing fits"}, .job = {}};
    for (size_t r = 0; r < profiles.size(); ++r) {
      plan.ranks.push_back(Explained(profiles[r], node.given_only(r), nothing));
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
  const std::vector<Fractions> all = node.Cut(result);
  for (size_t r = 0; r < profiles.size(); ++r) {
    FullRows full = FullRowsOf(profiles, node.problem(), result, r);
    if (node.hides_nothing(r) && full.own.kind.empty()) {
      full.own = {"bandwidth",
                  fmt::format("a pass of rank {} has no measured window that "
                              "could hide a copy",
                              profiles[r].rank.value())};
    }
    plan.ranks.push_back(Explained(profiles[r], all[r], full));
  }
  return plan;
}

// ---- What profiles may ask for ---------------------------------------------

namespace {

template <typename... Args>
absl::Status Wrong(const RankProfile& p, const SkeletalClass& c,
                   fmt::format_string<Args...> what, Args&&... args) {
  return absl::InvalidArgumentError(
      fmt::format("rank {}, class '{}': {}", p.rank.value(), c.name,
                  fmt::format(what, std::forward<Args>(args)...)));
}

absl::Status CheckClass(const RankProfile& p, const SkeletalClass& c) {
  const double keep = c.given.keep.value_or(0), swap = c.given.swap.value_or(0);
  if (c.must_swap && (keep > 0 || c.given.swap.value_or(1) < 1)) {
    return Wrong(p, c, "must be swapped whole, nothing else may be asked for");
  }
  if (keep > 0 && !c.can_keep) {
    return Wrong(p, c, "asks to keep {}, which the runtime cannot", keep);
  }
  if (keep + swap > 1 + 1e-9) {
    return Wrong(p, c, "asks for keep {} and swap {}: more than 1", keep, swap);
  }
  if (p.settled && !GivenOf(p, c).all()) {
    return Wrong(p, c, "a settled profile leaves nothing to choose");
  }
  return absl::OkStatus();
}

absl::Status CheckPositions(const std::vector<size_t>& positions,
                            const std::string& name, size_t count) {
  for (const size_t at : positions) {
    if (at >= count) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' names profile {} of {}", name, at, count));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProfiles(const std::vector<RankProfile>& profiles,
                           const NodeResources& resources) {
  std::set<std::pair<int64_t, uint64_t>> ranks;
  for (const RankProfile& p : profiles) {
    if (!ranks.emplace(p.job, p.rank.value()).second) {
      return absl::InvalidArgumentError(
          fmt::format("rank {} has two profiles", p.rank.value()));
    }
    for (const SkeletalClass& c : p.classes) {
      SLUICE_RETURN_IF_ERROR(CheckClass(p, c));
    }
  }
  for (const LinkCapacity& link : resources.links) {
    SLUICE_RETURN_IF_ERROR(
        CheckPositions(link.profiles, link.name, profiles.size()));
  }
  for (const HostLimit& host : resources.hosts) {
    SLUICE_RETURN_IF_ERROR(
        CheckPositions(host.profiles, host.name, profiles.size()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::planner
