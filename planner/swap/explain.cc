#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "planner/swap/rank_fractions.h"
#include "planner/swap/swap_accounting.h"

namespace sluice::planner {
namespace {

using RowKind = CapacityRow::Kind;

constexpr double kFills = 1e-6;    // relative accuracy of a plan's rows
constexpr double kNoLimit = 1e17;  // a larger capacity stands for no limit

// Rounds to six digits, because an LP's last digits differ between machines.
double Rounded(double value) {
  return std::strtod(fmt::format("{:.5e}", value).c_str(), nullptr);
}

bool Keeps(const NodeSwapProblem::Rank& rank) {
  for (const NodeSwapProblem::Tensor& tensor : rank.tensors) {
    if (tensor.must == NodeSwapProblem::Must::kNothing && tensor.can_keep &&
        tensor.bytes > 0) {
      return true;
    }
  }
  return false;
}

bool Shown(const NodeSwapProblem& problem, const CapacityRow& row) {
  if (row.capacity > kNoLimit) return false;
  return row.kind != RowKind::kGpu ||
         (row.capacity > 0 && Keeps(problem.ranks[row.index]));
}

// Returns whether the link is full while layers of kind k run: with the kind's
// own rate in place of the rank's highest, the link is still at its capacity.
bool FillsIt(const NodeSwapProblem& problem, const NodeSwapResult& result,
             const CapacityRow& row, size_t rank, size_t k) {
  const NodeSwapProblem::Rank& r = problem.ranks[rank];
  const std::vector<CopyRates> kinds =
      RatesOfKinds(r, result.ranks[rank].tensors);
  double most = 0;
  for (const CopyRates& rates : kinds)
    most = std::max(most, RateOf(rates, row));
  const double others = row.used - most;
  return RateOf(kinds[k], row) + others >= row.capacity * (1 - kFills);
}

FullRow FullOf(const NodeSwapProblem& problem, const NodeSwapResult& result,
               size_t rank, size_t k) {
  FullRow full;
  for (const CapacityRow& row : result.rows) {
    if (!row.binds) continue;
    const NodeSwapProblem::Rank& r = problem.ranks[rank];
    const bool uses = Uses(problem, rank, row);
    const bool host = row.kind == RowKind::kLimit && uses;
    const bool link =
        !IsMemory(row) && uses && FillsIt(problem, result, row, rank, k);
    if (!host && (!link || !full.kind.empty())) continue;
    full = {host ? "host" : "bandwidth",
            fmt::format("{} is full", RowName(problem, row))};
    if (link && r.kinds.size() > 1) {
      full.what +=
          fmt::format(" while layers of kind '{}' run", r.kinds[k].name);
    }
    if (host) break;
  }
  return full;
}

std::string Percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * fraction);
}

std::string Price(const plan::SkeletalClass& c) {
  if (c.recompute_seconds <= 0) return "recomputing it costs nothing";
  const auto bytes = static_cast<double>(c.bytes_per_layer.count());
  return fmt::format(
      "all of it recomputed would add {:.3g} s a layer, {:.3g} s a GiB",
      c.recompute_seconds, bytes > 0 ? c.recompute_seconds * kGiB / bytes : 0);
}

std::string Chosen(const plan::SkeletalClass& c, const plan::TokenFractions& f,
                   const std::string& full, bool stalls) {
  const std::string copies =
      c.traffic_in_fixed ? "its copies are made in any case, so swapping costs "
                           "only host memory"
      : stalls ? "what shows of its copies costs less than to recompute it"
               : "its copies hide under the layer's windows";
  if (f.swap == 1) return "swapped whole: " + copies;
  if (f.keep == 1) return "kept whole: the GPU has room for it";
  std::string text;
  if (f.keep > 0) {
    text = Percent(f.keep) + " kept, for which the GPU has room";
  }
  if (f.swap > 0) {
    if (!text.empty()) text += "; ";
    text += Percent(f.swap) + " swapped";
  }
  if (f.recompute <= 0) return text + ": " + copies;
  if (!text.empty()) text += ", ";
  const std::string rest =
      text.empty() ? "recomputed: " : "the rest recomputed: ";
  if (full.empty()) return text + rest + Price(c);
  return text + rest + full + "; " + Price(c);
}

std::string WhyOne(const plan::RankProfile& p, const plan::SkeletalClass& c,
                   const plan::TokenFractions& f, const FullRows& full,
                   bool stalls) {
  if (c.must_swap) {
    return "swapped whole: backward needs it and nothing rebuilds it cheaply";
  }
  if (GivenOf(p, c).all() && (c.given.swap || p.alpha >= 0)) {
    if (!c.why.empty()) return c.why;
    if (!c.given.swap)
      return fmt::format("alpha {:.4g} was asked for", p.alpha);
    return fmt::format("keep {:.4g}, swap {:.4g} was asked for", f.keep,
                       f.swap);
  }
  const FullRow& row = full.own.kind.empty() && c.shared ? full.job : full.own;
  return Chosen(c, f, row.what, stalls);
}

}  // namespace

std::string RankName(const std::vector<plan::RankProfile>& profiles,
                     size_t rank) {
  const plan::RankProfile& p = profiles[rank];
  for (const plan::RankProfile& other : profiles) {
    if (other.job != p.job) {
      return fmt::format("{} of job {}", p.rank.value(), p.job);
    }
  }
  return fmt::format("{}", p.rank.value());
}

std::vector<plan::PlanLimit> LimitsOf(const NodeSwapProblem& problem,
                                      const NodeSwapResult& result) {
  std::vector<plan::PlanLimit> limits;
  for (const CapacityRow& row : result.rows) {
    if (!Shown(problem, row)) continue;
    limits.push_back(
        {.what = RowName(problem, row),
         .used = Rounded(row.used),
         .capacity = row.capacity,
         .unit = IsMemory(row) ? "bytes" : "bytes_per_second",
         .binds = row.binds,
         .one_more_step_seconds = Rounded(row.one_more.step_s),
         .one_more_recompute_seconds = Rounded(row.one_more.recompute_s)});
  }
  return limits;
}

std::vector<FullRows> FullRowsOf(const std::vector<plan::RankProfile>& profiles,
                                 const NodeSwapProblem& problem,
                                 const NodeSwapResult& result, size_t rank) {
  std::vector<FullRows> full;
  for (size_t k = 0; k < profiles[rank].kinds.size(); ++k) {
    full.push_back({.own = FullOf(problem, result, rank, k), .job = {}});
    FullRow& job = full.back().job;
    for (size_t r = 0; r < profiles.size(); ++r) {
      if (profiles[r].job != profiles[rank].job) continue;
      const std::optional<size_t> same =
          plan::FindKind(profiles[r], profiles[rank].kinds[k].name);
      if (!same) continue;
      const FullRow one = FullOf(problem, result, r, *same);
      if (job.kind.empty() || (one.kind == "host" && job.kind != "host")) {
        job = one;
      }
    }
  }
  return full;
}

std::string LimitedBy(const plan::RankProfile& profile,
                      const Fractions& fractions,
                      const std::vector<FullRows>& full) {
  bool given = false, chosen = false;
  std::string own;     // FullRow::kind of the rank's own limit
  std::string shared;  // FullRow::kind of the job's limit, for shared classes
  const auto first = [](std::string* kept, const FullRow& row) {
    if (kept->empty() || row.kind == "host") *kept = row.kind;
  };
  for (size_t i = 0; i < profile.classes.size(); ++i) {
    const plan::SkeletalClass& c = profile.classes[i];
    if (c.must_swap || c.bytes_per_layer <= Bytes(0)) continue;
    const bool free = !c.given.swap && profile.alpha < 0;
    (free ? chosen : given) = true;
    if (!free || fractions[i].recompute <= 0) continue;
    const FullRows& rows = full[*plan::FindKind(profile, c.kind)];
    first(&own, rows.own);
    if (c.shared) first(&shared, rows.job);
  }
  if (!profile.limited_by.empty()) return profile.limited_by;
  if (!chosen) return given ? "flag" : "none";
  if (!own.empty()) return own;
  return shared.empty() ? "none" : shared;
}

std::vector<std::string> WhyOf(const plan::RankProfile& profile,
                               const Fractions& fractions,
                               const std::vector<FullRows>& full, bool stalls) {
  std::vector<std::string> why;
  for (size_t i = 0; i < profile.classes.size(); ++i) {
    const plan::SkeletalClass& c = profile.classes[i];
    why.push_back(WhyOne(profile, c, fractions[i],
                         full[*plan::FindKind(profile, c.kind)], stalls));
  }
  return why;
}

}  // namespace sluice::planner
