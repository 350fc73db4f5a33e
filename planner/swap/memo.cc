#include <fmt/format.h>

#include <algorithm>

#include "planner/swap/joint.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;

constexpr double kAlphaDigits = 1e-9;

// Bytes, or bytes per second, at alpha: fixed + alpha * slope.
struct Line {
  double fixed = 0;
  double slope = 0;
};

// Returns whether the tensor's swapped fraction is alpha. A tensor with a
// requested fraction to keep is not free: its rest is recomputed.
bool IsFree(const SwapProblem::Tensor& tensor) {
  return tensor.must == SwapProblem::Must::kNothing && tensor.recompute_s &&
         !tensor.given.swap && tensor.given.keep.value_or(0) == 0;
}

plan::TokenFractions FractionsAtAlpha(const SwapProblem::Tensor& tensor,
                                      double alpha) {
  plan::TokenFractions f{.keep = tensor.given.keep.value_or(0)};
  if (!tensor.recompute_s) {
    f.swap = tensor.given.swap.value_or(1 - f.keep);
    f.keep = 1 - f.swap;
    return f;
  }
  f.swap = tensor.given.swap.value_or(IsFree(tensor) ? alpha : 0);
  f.recompute = std::max(0.0, 1 - f.keep - f.swap);
  return f;
}

Fractions AtAlpha(const SwapProblem::Rank& rank, double alpha) {
  Fractions fractions;
  for (const SwapProblem::Tensor& tensor : rank.tensors) {
    switch (tensor.must) {
      case SwapProblem::Must::kKeep:
        fractions.push_back({.keep = 1});
        break;
      case SwapProblem::Must::kSwap:
        fractions.push_back({.swap = 1});
        break;
      case SwapProblem::Must::kRecompute:
        fractions.push_back({.recompute = 1});
        break;
      case SwapProblem::Must::kNothing:
        fractions.push_back(FractionsAtAlpha(tensor, alpha));
        break;
    }
  }
  return fractions;
}

// Returns a rank's swapped bytes, with `layers(tensor)` layers of each tensor.
Line SwappedLine(const SwapProblem::Rank& rank, auto layers) {
  Line line;
  const Fractions at_zero = AtAlpha(rank, 0);
  for (size_t t = 0; t < rank.tensors.size(); ++t) {
    const SwapProblem::Tensor& tensor = rank.tensors[t];
    const double bytes = layers(tensor) * tensor.bytes;
    line.fixed += bytes * at_zero[t].swap;
    if (IsFree(tensor)) line.slope += bytes;
  }
  return line;
}

// Finds the largest alpha that fits one rank, or the row that no alpha fits.
class OneRank {
 public:
  OneRank(const SwapProblem& problem, size_t rank)
      : problem_(problem), rank_(problem.ranks[rank]) {}

  double alpha() const { return alpha_; }
  const std::string& refusal() const { return refusal_; }

  void Solve() {
    for (size_t k = 0; k < rank_.kinds.size(); ++k) LinksOfKind(k);
    Host();
    Gpu();
  }

 private:
  // Lowers alpha until the bytes are at most `limit`, which `row` names.
  void AtMost(Line line, double limit, const std::string& row) {
    if (line.fixed > limit * (1 + kAlphaDigits)) {
      if (refusal_.empty()) {
        refusal_ = fmt::format(
            "rank '{}' needs {:.6g} of {} even at alpha 0; its part is {:.6g}",
            rank_.name, line.fixed, row, limit);
      }
      return;
    }
    if (line.slope > 0) {
      alpha_ = std::clamp((limit - line.fixed) / line.slope, 0.0, alpha_);
    }
  }

  void LinksOfKind(size_t k) {
    const SwapProblem::Kind& kind = rank_.kinds[k];
    const Line copied =
        SwappedLine(rank_, [k](const SwapProblem::Tensor& tensor) {
          return tensor.kind == k && !tensor.traffic_in_fixed ? 1.0 : 0.0;
        });
    const double tf = kind.forward_layer_s;
    const double tb = kind.backward_layer_s;
    const auto rate = [](Line moved, double fixed, double window) {
      // A pass without a window copies nothing.
      if (window <= 0) return Line{};
      return Line{(moved.fixed + fixed) / window, moved.slope / window};
    };
    for (const SwapProblem::Link& link : problem_.links) {
      if (!IsOn(rank_, link.name)) continue;
      const double part = 1 / Sharing([&link](const SwapProblem::Rank& other) {
                            return IsOn(other, link.name);
                          });
      const auto [f, b] = PassBytes(kind, 0);  // fixed
      const std::string row = fmt::format("link '{}' ", link.name);
      AtMost(rate(copied, f.d2h, tf), link.d2h_bytes_per_s * part, row + "d2h");
      AtMost(rate({}, b.d2h, tb), link.d2h_bytes_per_s * part, row + "d2h");
      AtMost(rate({}, f.h2d, tf), link.h2d_bytes_per_s * part, row + "h2d");
      AtMost(rate(copied, b.h2d, tb), link.h2d_bytes_per_s * part, row + "h2d");
      if (!link.total_bytes_per_s) continue;
      const double total = *link.total_bytes_per_s * part;
      AtMost(rate(copied, f.total, tf), total, row + "total");
      AtMost(rate(copied, b.total, tb), total, row + "total");
    }
  }

  void Host() {
    const Line held =
        SwappedLine(rank_, [this](const SwapProblem::Tensor& tensor) {
          return MovingLayers(rank_, tensor);
        });
    const double ranks = Sharing([this](const SwapProblem::Rank& other) {
      return other.numa == rank_.numa;
    });
    const Line all{held.fixed + rank_.host_fixed_bytes, held.slope};
    for (const SwapProblem::Numa& numa : problem_.numa) {
      if (numa.id != rank_.numa) continue;
      AtMost(all, numa.host_budget_bytes / ranks,
             fmt::format("NUMA node {}", numa.id));
    }
    for (const SwapProblem::Host& host : problem_.hosts) {
      if (!IsIn(rank_, host.name)) continue;
      const double sharing = Sharing([&host](const SwapProblem::Rank& other) {
        return IsIn(other, host.name);
      });
      AtMost(all, host.budget_bytes / sharing, "the " + host.name);
    }
  }

  void Gpu() {
    double kept = 0;
    const Fractions at_zero = AtAlpha(rank_, 0);
    for (size_t t = 0; t < rank_.tensors.size(); ++t) {
      const SwapProblem::Tensor& tensor = rank_.tensors[t];
      kept += MovingLayers(rank_, tensor) * tensor.bytes * at_zero[t].keep;
    }
    AtMost({kept, 0}, rank_.gpu_budget_bytes, "its GPU");
  }

  double Sharing(auto counts) const {
    return static_cast<double>(
        std::count_if(problem_.ranks.begin(), problem_.ranks.end(), counts));
  }

  const SwapProblem& problem_;
  const SwapProblem::Rank& rank_;
  double alpha_ = 1;
  std::string refusal_;
};

// Gives ranks that share a fraction the lowest of their alphas. Repeats until
// nothing changes, because a lowered alpha may affect further ranks through
// another tensor.
void MakeEqual(const SwapProblem& problem, std::vector<double>* alphas) {
  // The ranks with a free tensor of each shared name.
  std::map<std::string, std::vector<size_t>> sharing;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    for (const SwapProblem::Tensor& tensor : problem.ranks[r].tensors) {
      if (tensor.shared.empty() || !IsFree(tensor)) continue;
      sharing[tensor.shared].push_back(r);
    }
  }
  bool changed = true;
  while (changed) {
    changed = false;
    for (const auto& [name, ranks] : sharing) {
      double least = 1;
      for (const size_t r : ranks) least = std::min(least, (*alphas)[r]);
      for (const size_t r : ranks) {
        changed |= (*alphas)[r] != least;
        (*alphas)[r] = least;
      }
    }
  }
}

}  // namespace

MemoPlan PlanMemo(const SwapProblem& problem) {
  MemoPlan plan;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    OneRank rank(problem, r);
    rank.Solve();
    if (!rank.refusal().empty()) return {.refusal = rank.refusal()};
    plan.alpha.push_back(rank.alpha());
  }
  MakeEqual(problem, &plan.alpha);
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    plan.fractions.push_back(AtAlpha(problem.ranks[r], plan.alpha[r]));
  }
  return plan;
}

}  // namespace sluice::planner
