#include "planner/swap/swap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "planner/swap/lp.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using plan::LinkCapacity;
using plan::NodeResources;
using plan::RankProfile;

constexpr double kGiga = 1e9;  // keeps rates near 1
// Alpha is cut to multiples of this: no harm to a plan, and equal on every
// machine whatever the last digits of an LP are.
constexpr double kAlphaStep = 1.0 / 4096;

double AsDouble(Bytes bytes) { return static_cast<double>(bytes.count()); }

// What a rank does as a function of its alpha: bytes = fixed + alpha * slope.
struct Line {
  double fixed = 0;
  double slope = 0;
  double At(double alpha) const { return fixed + alpha * slope; }
};

// One direction of a rank's copies: the worse of its two passes, in GB/s.
struct Traffic {
  Line forward;
  Line backward;
  // A pass without a measured window can't hide a copy.
  bool endless = false;
  double At(double alpha) const {
    return std::max(forward.At(alpha), backward.At(alpha));
  }
};

Line PerSecond(Bytes fixed, Line moved, double seconds, bool* endless) {
  const Line bytes{AsDouble(fixed) + moved.fixed, moved.slope};
  if (bytes.fixed <= 0 && bytes.slope <= 0) return {};
  if (seconds <= 0) {
    *endless = true;
    return {};
  }
  return {bytes.fixed / seconds / kGiga, bytes.slope / seconds / kGiga};
}

struct RankModel {
  Line host;  // bytes
  Traffic d2h;
  Traffic h2d;
  bool free = false;  // has anything to choose

  explicit RankModel(const RankProfile& p) {
    Line held;    // bytes a layer in host memory
    Line copied;  // of them not counted in the fixed traffic
    for (const plan::SkeletalClass& c : p.classes) {
      const double bytes = AsDouble(c.bytes_per_layer);
      double Line::*part = c.must_swap ? &Line::fixed : &Line::slope;
      held.*part += bytes;
      if (!c.traffic_in_fixed) copied.*part += bytes;
      free |= !c.must_swap && bytes > 0;
    }
    const double layers = static_cast<double>(p.layers - p.resident_layers);
    host = {layers * held.fixed + AsDouble(p.host_fixed), layers * held.slope};
    const double tf = p.forward_layer_seconds;
    const double tb = p.backward_layer_seconds;
    d2h.forward = PerSecond(p.forward_d2h_fixed, copied, tf, &d2h.endless);
    d2h.backward = PerSecond(p.backward_d2h_fixed, {}, tb, &d2h.endless);
    h2d.forward = PerSecond(p.forward_h2d_fixed, {}, tf, &h2d.endless);
    h2d.backward = PerSecond(p.backward_h2d_fixed, copied, tb, &h2d.endless);
  }

  Bytes HostBytes(double alpha) const {
    return Bytes(static_cast<int64_t>(std::ceil(host.At(alpha) - 1e-3)));
  }
};

// The node's LP. Columns: alpha, D2H rate and H2D rate of every rank, and the
// smallest alpha among those that are raised together.
class AlphaProgram {
 public:
  AlphaProgram(const std::vector<RankProfile>& profiles,
               const NodeResources& resources,
               const std::vector<RankModel>& models,
               const std::vector<double>& least)
      : models_(models) {
    for (size_t r = 0; r < profiles.size(); ++r) {
      const bool chosen = profiles[r].alpha < 0;
      const bool hopeless = models[r].d2h.endless || models[r].h2d.endless;
      const double most = chosen && !hopeless ? 1 : least[r];
      alpha_.push_back(program_.Add({.lower = least[r], .upper = most}));
      d2h_.push_back(AddRate(models[r].d2h, alpha_.back()));
      h2d_.push_back(AddRate(models[r].h2d, alpha_.back()));
    }
    for (const LinkCapacity& link : resources.links) {
      AddLink(profiles, link, least);
    }
    for (size_t node = 0; node < resources.host_budget.size(); ++node) {
      AddBudget(profiles, node, resources.host_budget[node]);
    }
    smallest_ = program_.Add({.lower = 0, .upper = 1});
  }

  // Raises the smallest alpha of `ranks` as far as it goes.
  absl::StatusOr<double> RaiseAll(const std::vector<size_t>& ranks) {
    LinearProgram program = program_;
    program.columns[static_cast<size_t>(smallest_)].profit = 1;
    for (const size_t r : ranks) {
      program.rows.push_back(
          {.upper = 0, .terms = {{smallest_, 1}, {alpha_[r], -1}}});
    }
    SLUICE_ASSIGN_OR_RETURN(const auto values, Maximise(program));
    return values[static_cast<size_t>(smallest_)];
  }

  // Raises one rank's alpha while the others keep at least what they have.
  absl::StatusOr<double> RaiseOne(size_t rank) {
    LinearProgram program = program_;
    program.columns[static_cast<size_t>(alpha_[rank])].profit = 1;
    SLUICE_ASSIGN_OR_RETURN(const auto values, Maximise(program));
    return values[static_cast<size_t>(alpha_[rank])];
  }

  void AtLeast(size_t rank, double alpha) {
    LinearProgram::Column& column = Alpha(rank);
    // An LP's digits must not cross the bounds.
    column.lower = std::clamp(alpha - 1e-9, column.lower, column.upper);
  }
  void Freeze(size_t rank, double alpha) {
    AtLeast(rank, alpha);
    Alpha(rank).upper = std::max(Alpha(rank).lower, alpha);
  }

 private:
  LinearProgram::Column& Alpha(size_t rank) {
    return program_.columns[static_cast<size_t>(alpha_[rank])];
  }

  // A column that is at least the traffic of either pass.
  int AddRate(const Traffic& traffic, int alpha) {
    const int rate = program_.Add({});
    for (const Line& line : {traffic.forward, traffic.backward}) {
      if (line.fixed == 0 && line.slope == 0) continue;
      program_.rows.push_back(
          {.lower = line.fixed, .terms = {{rate, 1}, {alpha, -line.slope}}});
    }
    return rate;
  }

  void AddLink(const std::vector<RankProfile>& profiles,
               const LinkCapacity& link, const std::vector<double>& least) {
    LinearProgram::Row d2h, h2d;
    double d2h_least = 0;
    double h2d_least = 0;
    for (size_t r = 0; r < profiles.size(); ++r) {
      if (std::count(link.ranks.begin(), link.ranks.end(), profiles[r].rank) ==
          0) {
        continue;
      }
      d2h.terms.emplace_back(d2h_[r], 1);
      h2d.terms.emplace_back(h2d_[r], 1);
      d2h_least += models_[r].d2h.At(least[r]);
      h2d_least += models_[r].h2d.At(least[r]);
    }
    // What must be copied may overload a link already: those copies do not
    // hide, but that is no reason to refuse the run; nothing is added.
    d2h.upper = std::max(link.d2h_bytes_per_second / kGiga, d2h_least);
    h2d.upper = std::max(link.h2d_bytes_per_second / kGiga, h2d_least);
    for (LinearProgram::Row* row : {&d2h, &h2d}) {
      if (!row->terms.empty()) program_.rows.push_back(std::move(*row));
    }
  }

  void AddBudget(const std::vector<RankProfile>& profiles, size_t node,
                 Bytes budget) {
    if (budget < Bytes(0)) return;
    LinearProgram::Row row;
    const double scale = std::max(AsDouble(budget), 1.0);
    double fixed = 0;
    for (size_t r = 0; r < profiles.size(); ++r) {
      if (profiles[r].numa.value() != node) continue;
      fixed += models_[r].host.fixed / scale;
      if (models_[r].host.slope > 0) {
        row.terms.emplace_back(alpha_[r], models_[r].host.slope / scale);
      }
    }
    row.upper = AsDouble(budget) / scale - fixed;
    if (!row.terms.empty()) program_.rows.push_back(std::move(row));
  }

  const std::vector<RankModel>& models_;
  LinearProgram program_;
  std::vector<int> alpha_, d2h_, h2d_;
  int smallest_ = 0;
};

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

double CutAlpha(double alpha) {
  const double steps = std::floor(alpha / kAlphaStep + 1e-6);
  return std::clamp(steps * kAlphaStep, 0.0, 1.0);
}

// Whether the host budget of the rank's NUMA node is what keeps alpha down:
// one more step does not fit.
bool HostBinds(const std::vector<RankProfile>& profiles,
               const NodeResources& resources,
               const std::vector<RankModel>& models,
               const std::vector<double>& alphas, size_t rank) {
  const size_t node = profiles[rank].numa.value();
  if (node >= resources.host_budget.size()) return false;
  const Bytes budget = resources.host_budget[node];
  if (budget < Bytes(0)) return false;
  double used = 0;
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].numa.value() != node) continue;
    // Others were cut by up to a step as well.
    used += models[r].host.At(std::min(1.0, alphas[r] + kAlphaStep));
  }
  return used > AsDouble(budget);
}

// Solves until no rank can be raised any more.
absl::StatusOr<std::vector<double>> RaiseFairly(
    const std::vector<RankProfile>& profiles, const NodeResources& resources,
    const std::vector<RankModel>& models, std::vector<double> alphas) {
  AlphaProgram program(profiles, resources, models, alphas);
  std::vector<size_t> open;
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].alpha < 0) open.push_back(r);
  }
  while (!open.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const double level, program.RaiseAll(open));
    for (const size_t r : open) program.AtLeast(r, level);
    std::vector<size_t> still_open;
    for (const size_t r : open) {
      SLUICE_ASSIGN_OR_RETURN(const double most, program.RaiseOne(r));
      alphas[r] = level;
      if (most > level + 1e-7) {
        still_open.push_back(r);
      } else {
        program.Freeze(r, level);
      }
    }
    // Each round at least one rank is at its limit; if digits say otherwise
    // stop, with what is feasible.
    if (still_open.size() == open.size()) break;
    open = std::move(still_open);
  }
  return alphas;
}

}  // namespace

absl::StatusOr<SwapPlan> PlanSwap(const std::vector<RankProfile>& profiles,
                                  const NodeResources& resources) {
  std::vector<RankModel> models;
  std::vector<double> alphas;  // the least each may have
  for (const RankProfile& p : profiles) {
    models.emplace_back(p);
    alphas.push_back(p.alpha >= 0 ? p.alpha : 0);
  }
  SwapPlan plan;
  for (size_t node = 0; node < resources.host_budget.size(); ++node) {
    std::string refusal = TooMuchHost(profiles, models, alphas, node,
                                      resources.host_budget[node]);
    if (plan.infeasible.empty()) plan.infeasible = std::move(refusal);
  }
  if (plan.infeasible.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        alphas, RaiseFairly(profiles, resources, models, std::move(alphas)));
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    if (profiles[r].alpha < 0) {
      alphas[r] = models[r].free ? CutAlpha(alphas[r]) : 1;
    }
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    std::string limit = "bandwidth";
    if (profiles[r].alpha >= 0) {
      limit = "flag";
    } else if (alphas[r] == 1) {
      limit = "none";
    } else if (HostBinds(profiles, resources, models, alphas, r)) {
      limit = "host";
    }
    plan.ranks.push_back(
        {alphas[r], std::move(limit), models[r].HostBytes(alphas[r])});
  }
  return plan;
}

}  // namespace sluice::planner
