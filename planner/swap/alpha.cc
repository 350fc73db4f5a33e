#include "planner/swap/alpha.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "planner/swap/explain.h"
#include "planner/swap/node_swap.h"
#include "planner/swap/usage.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using plan::LinkCapacity;
using plan::NodeResources;
using plan::RankProfile;

// Alpha is cut to multiples of this: no harm to a plan, and equal on every
// machine whatever the last digits of an LP are.
constexpr double kAlphaStep = 1.0 / 4096;
constexpr double kUnlimited = 1e18;

double AsDouble(Bytes bytes) { return static_cast<double>(bytes.count()); }

// What a rank does as a function of its alpha: bytes = fixed + alpha * slope.
struct Line {
  double fixed = 0;
  double slope = 0;
  double At(double alpha) const { return fixed + alpha * slope; }
};

struct RankModel {
  Line host;          // bytes
  Line copied;        // bytes a layer that are not in the fixed traffic
  bool free = false;  // has anything to choose
  // A pass without a measured window can't hide a copy.
  bool endless = false;

  explicit RankModel(const RankProfile& p) {
    Line held;  // bytes a layer in host memory
    for (const plan::SkeletalClass& c : p.classes) {
      const double bytes = AsDouble(c.bytes_per_layer);
      double Line::*part = c.must_swap ? &Line::fixed : &Line::slope;
      held.*part += bytes;
      if (!c.traffic_in_fixed) copied.*part += bytes;
      free |= !c.must_swap && bytes > 0;
    }
    const double layers = static_cast<double>(p.layers - p.resident_layers);
    host = {layers * held.fixed + AsDouble(p.host_fixed), layers * held.slope};
    const bool copies = copied.At(1) > 0;
    const Bytes forward = p.forward_d2h_fixed + p.forward_h2d_fixed;
    const Bytes backward = p.backward_d2h_fixed + p.backward_h2d_fixed;
    endless =
        (p.forward_layer_seconds <= 0 && (copies || forward > Bytes(0))) ||
        (p.backward_layer_seconds <= 0 && (copies || backward > Bytes(0)));
  }

  Bytes HostBytes(double alpha) const {
    return Bytes(static_cast<int64_t>(std::ceil(host.At(alpha) - 1e-3)));
  }
};

// ---- The node as the LP takes it -------------------------------------------

NodeSwapProblem::Rank RankOf(const RankProfile& p) {
  NodeSwapProblem::Rank rank;
  rank.name = fmt::format("{:08}", p.rank.value());
  rank.numa = static_cast<int64_t>(p.numa.value());
  rank.layers = std::max<int64_t>(p.layers, 1);
  rank.resident_layers = std::min(p.resident_layers, rank.layers);
  const auto window = [](double seconds) { return seconds > 0 ? seconds : 1; };
  rank.forward_layer_s = window(p.forward_layer_seconds);
  rank.backward_layer_s = window(p.backward_layer_seconds);
  rank.forward_d2h_fixed_bytes = AsDouble(p.forward_d2h_fixed);
  rank.forward_h2d_fixed_bytes = AsDouble(p.forward_h2d_fixed);
  rank.backward_d2h_fixed_bytes = AsDouble(p.backward_d2h_fixed);
  rank.backward_h2d_fixed_bytes = AsDouble(p.backward_h2d_fixed);
  rank.host_fixed_bytes = AsDouble(p.host_fixed);
  rank.one_fraction = true;
  if (p.alpha >= 0) rank.fraction = p.alpha;
  using Must = NodeSwapProblem::Must;
  for (const plan::SkeletalClass& c : p.classes) {
    rank.tensors.push_back({.name = c.name,
                            .bytes = AsDouble(c.bytes_per_layer),
                            .recompute_s = c.recompute_seconds,
                            .must = c.must_swap ? Must::kSwap : Must::kNothing,
                            .traffic_in_fixed = c.traffic_in_fixed});
  }
  return rank;
}

// A link that copies which must be made overload already is no refusal: those
// copies show, and nothing is added to them.
void AddLink(const LinkCapacity& link, const std::vector<RankProfile>& profiles,
             const std::vector<RankModel>& models, NodeSwapProblem* problem) {
  if (link.d2h_bytes_per_second <= 0 || link.h2d_bytes_per_second <= 0) return;
  CopyRates least;
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (models[r].endless) continue;
    if (std::count(link.ranks.begin(), link.ranks.end(), profiles[r].rank) ==
        0) {
      continue;
    }
    NodeSwapProblem::Rank& rank = problem->ranks[r];
    rank.links.push_back(link.name);
    const CopyRates rates =
        RatesOf(rank, models[r].copied.At(std::max(profiles[r].alpha, 0.0)));
    least.d2h += rates.d2h, least.h2d += rates.h2d;
  }
  problem->links.push_back(
      {.name = link.name,
       .h2d_bytes_per_s = std::max(link.h2d_bytes_per_second, least.h2d),
       .d2h_bytes_per_s = std::max(link.d2h_bytes_per_second, least.d2h),
       .total_bytes_per_s = std::nullopt});
}

NodeSwapProblem ProblemOf(const std::vector<RankProfile>& profiles,
                          const NodeResources& resources,
                          const std::vector<RankModel>& models) {
  NodeSwapProblem problem;
  size_t nodes = resources.host_budget.size();
  for (size_t r = 0; r < profiles.size(); ++r) {
    problem.ranks.push_back(RankOf(profiles[r]));
    nodes = std::max<size_t>(nodes, profiles[r].numa.value() + 1);
  }
  for (size_t node = 0; node < nodes; ++node) {
    const bool limited = node < resources.host_budget.size() &&
                         resources.host_budget[node] >= Bytes(0);
    problem.numa.push_back(
        {static_cast<int64_t>(node),
         limited ? AsDouble(resources.host_budget[node]) : kUnlimited});
  }
  for (const LinkCapacity& link : resources.links) {
    AddLink(link, profiles, models, &problem);
  }
  // One fraction for all: none where one rank can hide nothing.
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (!models[r].endless || profiles[r].alpha >= 0) continue;
    for (NodeSwapProblem::Rank& rank : problem.ranks) {
      if (!rank.fraction) rank.fraction = 0;
    }
  }
  return problem;
}

// ---- Refusals --------------------------------------------------------------

std::string Amount(double bytes) {
  const Bytes whole(static_cast<int64_t>(std::ceil(bytes)));
  return fmt::format("{} ({} bytes)", FormatBytes(whole), whole.count());
}

// One line on a NUMA node whose ranks need too much even at their least
// alphas; empty when they fit.
std::string TooMuchHost(const std::vector<RankProfile>& profiles,
                        const std::vector<RankModel>& models,
                        const std::vector<double>& least, size_t node,
                        Bytes budget) {
  double need = 0;
  Line asked;  // the part that a user's alpha decides
  std::optional<double> flag;
  size_t count = 0;
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].numa.value() != node) continue;
    ++count;
    need += AsDouble(models[r].HostBytes(least[r]));
    asked.fixed += models[r].host.fixed;
    if (profiles[r].alpha < 0) continue;
    flag = std::max(flag.value_or(0), profiles[r].alpha);
    asked.slope += models[r].host.slope;
  }
  if (budget < Bytes(0) || need <= AsDouble(budget)) return "";
  std::string hint;
  const double largest =
      asked.slope > 0 ? (AsDouble(budget) - asked.fixed) / asked.slope : -1;
  if (flag.value_or(0) > 0 && largest >= 0) {
    hint = fmt::format("the largest alpha that fits is {:.4f}, or ",
                       std::floor(largest * 1e4) / 1e4);
  }
  return fmt::format(
      "alpha {}{} needs {} of host memory for {} rank(s) on NUMA node {}, the "
      "budget is {}: {}shorten the sequence to about {:.0f} % of this length, "
      "or raise the host budget",
      flag.value_or(0), flag ? "" : " (the least)", Amount(need), count, node,
      Amount(AsDouble(budget)), hint,
      std::floor(100 * AsDouble(budget) / need));
}

// Down to a step, but for what an LP's digits are short of one.
double CutAlpha(double alpha) {
  const double steps = std::floor(alpha / kAlphaStep + 1e-4);
  return std::clamp(steps * kAlphaStep, 0.0, 1.0);
}

bool WithinBudgets(const std::vector<RankProfile>& profiles,
                   const NodeResources& resources,
                   const std::vector<RankModel>& models,
                   const std::vector<double>& alphas) {
  for (size_t node = 0; node < resources.host_budget.size(); ++node) {
    Bytes used;
    for (size_t r = 0; r < profiles.size(); ++r) {
      if (profiles[r].numa.value() != node) continue;
      used += models[r].HostBytes(alphas[r]);
    }
    const Bytes budget = resources.host_budget[node];
    if (budget >= Bytes(0) && used > budget) return false;
  }
  return true;
}

// Host budgets are kept to the byte: a step back where digits were too many.
void CutToBudgets(const std::vector<RankProfile>& profiles,
                  const NodeResources& resources,
                  const std::vector<RankModel>& models,
                  std::vector<double>* alphas) {
  if (WithinBudgets(profiles, resources, models, *alphas)) return;
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].alpha >= 0 || !models[r].free) continue;
    (*alphas)[r] = std::max(0.0, (*alphas)[r] - kAlphaStep);
  }
}

// What keeps the one alpha down: of all ranks, since all share it.
struct Limit {
  std::string kind;  // "host", "bandwidth", "none"
  std::string full;  // "host of NUMA node 0 is full"
};

// One more step of alpha does not fit.
bool HostBinds(const std::vector<RankProfile>& profiles,
               const NodeResources& resources,
               const std::vector<RankModel>& models,
               const std::vector<double>& alphas, size_t node) {
  const Bytes budget = resources.host_budget[node];
  if (budget < Bytes(0)) return false;
  double used = 0, now = 0;
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].numa.value() != node) continue;
    now += models[r].host.At(alphas[r]);
    used += models[r].host.At(std::min(1.0, alphas[r] + kAlphaStep));
  }
  return used > AsDouble(budget) && used > now;
}

Limit LimitOf(const std::vector<RankProfile>& profiles,
              const NodeResources& resources,
              const std::vector<RankModel>& models,
              const std::vector<double>& alphas, const NodeSwapProblem& problem,
              const NodeSwapResult& result) {
  for (size_t node = 0; node < resources.host_budget.size(); ++node) {
    if (HostBinds(profiles, resources, models, alphas, node)) {
      return {"host", fmt::format("host of NUMA node {} is full", node)};
    }
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (models[r].endless) {
      return {"bandwidth", fmt::format("a pass of rank {} has no measured "
                                       "window that could hide a copy",
                                       profiles[r].rank.value())};
    }
    const std::string link = FullLink(problem, result, r);
    if (!link.empty()) return {"bandwidth", link + " is full"};
  }
  return {"none", ""};
}

// The fraction that the LP chose for the rank's free classes.
double ChosenAlpha(const NodeSwapProblem::Rank& rank, const RankSwap& swap) {
  double alpha = 1;
  for (size_t t = 0; t < rank.tensors.size(); ++t) {
    if (rank.tensors[t].must == NodeSwapProblem::Must::kNothing) {
      alpha = std::min(alpha, swap.tensors[t].swap);
    }
  }
  return alpha;
}

SwapPlan Least(const std::vector<RankProfile>& profiles,
               const std::vector<RankModel>& models, std::string refusal) {
  SwapPlan plan{.ranks = {}, .infeasible = std::move(refusal)};
  for (size_t r = 0; r < profiles.size(); ++r) {
    const double alpha = std::max(profiles[r].alpha, 0.0);
    SwapChoice choice{alpha,
                      profiles[r].alpha >= 0 ? "flag" : "host",
                      models[r].HostBytes(alpha),
                      {}};
    choice.why = WhyOf(profiles[r], choice, "nothing fits");
    plan.ranks.push_back(std::move(choice));
  }
  return plan;
}

}  // namespace

absl::StatusOr<SwapPlan> PlanSwap(const std::vector<RankProfile>& profiles,
                                  const NodeResources& resources) {
  std::vector<RankModel> models;
  std::vector<double> alphas;  // the least each may have
  for (const RankProfile& p : profiles) {
    models.emplace_back(p);
    alphas.push_back(std::max(p.alpha, 0.0));
  }
  for (size_t node = 0; node < resources.host_budget.size(); ++node) {
    std::string refusal = TooMuchHost(profiles, models, alphas, node,
                                      resources.host_budget[node]);
    if (!refusal.empty()) return Least(profiles, models, std::move(refusal));
  }
  const NodeSwapProblem problem = ProblemOf(profiles, resources, models);
  SLUICE_ASSIGN_OR_RETURN(const NodeSwapResult result, PlanNodeSwap(problem));
  if (!result.feasible) {
    return absl::InternalError("the swap plan does not fit, at alphas that do");
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].alpha >= 0) continue;
    alphas[r] = models[r].free
                    ? CutAlpha(ChosenAlpha(problem.ranks[r], result.ranks[r]))
                    : 1;
  }
  CutToBudgets(profiles, resources, models, &alphas);
  SwapPlan plan{
      .ranks = {}, .infeasible = "", .limits = LimitsOf(problem, result)};
  const Limit limit =
      LimitOf(profiles, resources, models, alphas, problem, result);
  for (size_t r = 0; r < profiles.size(); ++r) {
    SwapChoice choice{
        alphas[r], limit.kind, models[r].HostBytes(alphas[r]), {}};
    if (alphas[r] == 1) choice.limited_by = "none";
    if (profiles[r].alpha >= 0) choice.limited_by = "flag";
    choice.why = WhyOf(profiles[r], choice, limit.full);
    plan.ranks.push_back(std::move(choice));
  }
  return plan;
}

}  // namespace sluice::planner
