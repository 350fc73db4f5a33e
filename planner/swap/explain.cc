#include "planner/swap/explain.h"

#include <fmt/format.h>

#include <cstdlib>

#include "planner/swap/usage.h"

namespace sluice::planner {
namespace {

using Kind = CapacityRow::Kind;

// More than any machine has: stands for "no limit".
constexpr double kNoLimit = 1e17;

// Six digits: the last ones of an LP are not the same on every machine.
double Rounded(double value) {
  return std::strtod(fmt::format("{:.5e}", value).c_str(), nullptr);
}

std::string WhyOne(const plan::SkeletalClass& c, const SwapChoice& choice,
                   const std::string& full) {
  if (c.must_swap) {
    return "swapped whole: backward needs it and nothing rebuilds it cheaply";
  }
  const std::string copies =
      c.traffic_in_fixed ? "its copies are made in any case, it costs host "
                           "memory only"
                         : "its copies hide under the layer's windows";
  if (choice.limited_by == "flag") {
    return fmt::format("alpha {:.4g} was asked for", choice.alpha);
  }
  if (choice.alpha == 1) return "swapped whole: " + copies;
  if (choice.limited_by == "none") {
    return "recomputed where that costs nothing";
  }
  const std::string more =
      c.recompute_seconds > 0
          ? fmt::format("; all of it recomputed would add {:.3g} s a layer",
                        c.recompute_seconds)
          : "; recomputing it costs nothing";
  return fmt::format("{:.1f} % swapped, the rest recomputed: {}{}",
                     100 * choice.alpha, full, more);
}

}  // namespace

std::vector<plan::PlanLimit> LimitsOf(const NodeSwapProblem& problem,
                                      const NodeSwapResult& result) {
  std::vector<plan::PlanLimit> limits;
  for (const CapacityRow& row : result.rows) {
    if (row.kind == Kind::kGpu || row.capacity > kNoLimit) continue;
    limits.push_back(
        {.what = RowName(problem, row),
         .used = Rounded(row.used),
         .capacity = row.capacity,
         .unit = row.kind == Kind::kHost ? "bytes" : "bytes_per_second",
         .binds = row.binds,
         .one_more_step_seconds = Rounded(row.one_more.step_s),
         .one_more_recompute_seconds = Rounded(row.one_more.recompute_s)});
  }
  return limits;
}

std::string FullLink(const NodeSwapProblem& problem,
                     const NodeSwapResult& result, size_t rank) {
  for (const CapacityRow& row : result.rows) {
    const bool of_link =
        row.kind == Kind::kLinkD2h || row.kind == Kind::kLinkH2d;
    if (row.binds && of_link &&
        IsOn(problem.ranks[rank], problem.links[row.index].name)) {
      return RowName(problem, row);
    }
  }
  return "";
}

std::vector<std::string> WhyOf(const plan::RankProfile& profile,
                               const SwapChoice& choice,
                               const std::string& full) {
  std::vector<std::string> why;
  for (const plan::SkeletalClass& c : profile.classes) {
    why.push_back(WhyOne(c, choice, full));
  }
  return why;
}

}  // namespace sluice::planner
