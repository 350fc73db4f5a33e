#include "planner/swap/cut_fractions.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/swap/swap_accounting.h"

namespace sluice::planner {
namespace {

using plan::HostLimit;
using plan::LinkCapacity;

// What is chosen is cut to multiples of this: no harm to a plan, and equal on
// every machine whatever the last digits of an LP are.
constexpr double kStep = 1.0 / 4096;
constexpr double kUnlimitedRate = std::numeric_limits<double>::infinity();
// A fraction of digits.
constexpr double kNothing = 1e-6;
// Links are measured; digits of a rate are none of theirs.
constexpr double kCutDigits = 1e-7;

// Down to a step, but for what an LP's digits are short of one.
double CutDown(double fraction) {
  const double steps = std::floor(fraction / kStep + 1e-4);
  return std::clamp(steps * kStep, 0.0, 1.0);
}

double Most(const std::vector<CopyRates>& kinds, double CopyRates::*way) {
  double most = 0;
  for (const CopyRates& rates : kinds) most = std::max(most, rates.*way);
  return most;
}

// Whichever kinds the ranks run at one time: within the link, or within what
// must be copied then.
bool LinkHolds(const GivenNode& node, const NodeSwapProblem& problem,
               const LinkCapacity& link, const std::vector<Fractions>& all) {
  std::vector<std::vector<CopyRates>> used, least;  // rank of the link, kind
  for (const size_t r : link.profiles) {
    const NodeSwapProblem::Rank& rank = problem.ranks[r];
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

// `stalls`: copies may show.
bool FitsResources(const GivenNode& node, const NodeSwapProblem& problem,
                   const std::vector<Fractions>& all, bool stalls) {
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
    if (!stalls && !LinkHolds(node, problem, link, all)) return false;
  }
  return true;
}

// `fill`: what the LP recomputes nothing of is swapped up to the last row.
std::vector<Fractions> CutAll(const GivenNode& node,
                              const NodeSwapProblem& problem,
                              const NodeSwapResult& result, bool fill,
                              int steps_back) {
  std::vector<Fractions> all = node.given_only;
  for (size_t r = 0; r < node.profiles.size(); ++r) {
    for (size_t i = 0; i < all[r].size(); ++i) {
      const NodeSwapProblem::Tensor& tensor = problem.ranks[r].tensors[i];
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

}  // namespace

std::vector<Fractions> CutFractions(const GivenNode& node,
                                    const NodeSwapProblem& problem,
                                    const NodeSwapResult& result) {
  std::vector<Fractions> all = CutAll(node, problem, result, /*fill=*/true, 0);
  const bool stalls = result.hidden_step_s.has_value();
  if (FitsResources(node, problem, all, stalls)) return all;
  // Digits may be a step too many.
  for (int back = 0; back < 64; ++back) {
    all = CutAll(node, problem, result, /*fill=*/false, back);
    if (FitsResources(node, problem, all, stalls)) return all;
  }
  return node.given_only;
}

}  // namespace sluice::planner
