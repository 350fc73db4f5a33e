#include "tests/planner/swap/naive_rows.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace sluice::planner {

using Problem = NodeSwapProblem;

double Near(double value) { return std::max(1.0, std::fabs(value)); }

bool NotWorse(const SwapObjective& a, const SwapObjective& b,
              double tolerance) {
  const double step = tolerance * b.step_s;
  if (std::fabs(a.step_s - b.step_s) > step) return a.step_s < b.step_s;
  const double recompute = tolerance * Near(b.step_s);
  if (std::fabs(a.recompute_s - b.recompute_s) > recompute) {
    return a.recompute_s < b.recompute_s;
  }
  return a.moved_bytes <= b.moved_bytes * (1 + 1e-6) + 1e3;
}

namespace {

double Moving(const Problem::Rank& rank, const Problem::Tensor& tensor) {
  const Problem::Kind& kind = rank.kinds[tensor.kind];
  return static_cast<double>(kind.layers - kind.resident_layers);
}

// Bytes per second.
struct Rates {
  double d2h = 0, h2d = 0, total = 0;
};

// Returns the rates while layers of each kind run.
std::vector<Rates> NaiveRatesOfKinds(const Problem::Rank& rank,
                                     const RankSwap& plan) {
  std::vector<Rates> kinds;
  for (size_t k = 0; k < rank.kinds.size(); ++k) {
    const Problem::Kind& kind = rank.kinds[k];
    double d = 0;
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const Problem::Tensor& tensor = rank.tensors[t];
      if (tensor.kind != k || tensor.traffic_in_fixed) continue;
      d += tensor.bytes * plan.tensors[t].swap;
    }
    const double tf = kind.forward_layer_s;
    const double tb = std::max(kind.backward_layer_s, 1e-300);
    const double ff = kind.forward_d2h_fixed_bytes;
    const double fh = kind.forward_h2d_fixed_bytes;
    const double bf = kind.backward_d2h_fixed_bytes;
    const double bh = kind.backward_h2d_fixed_bytes;
    kinds.push_back({std::max((d + ff) / tf, bf / tb),
                     std::max(fh / tf, (d + bh) / tb),
                     std::max((d + ff + fh) / tf, (d + bf + bh) / tb)});
  }
  return kinds;
}

Rates MostOf(const std::vector<Rates>& kinds) {
  Rates most;
  for (const Rates& rates : kinds) {
    most.d2h = std::max(most.d2h, rates.d2h);
    most.h2d = std::max(most.h2d, rates.h2d);
    most.total = std::max(most.total, rates.total);
  }
  return most;
}

}  // namespace

double WorstBreach(const Problem& p, const std::vector<RankSwap>& ranks) {
  double worst = 0;
  std::vector<double> host(p.numa.size(), 0);
  std::vector<double> d2h(p.links.size(), 0), h2d = d2h, total = d2h;
  for (size_t r = 0; r < p.ranks.size(); ++r) {
    const Problem::Rank& rank = p.ranks[r];
    double swapped = 0, kept = 0;
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const plan::TokenFractions& f = ranks[r].tensors[t];
      worst = std::max(worst, std::fabs(f.keep + f.swap + f.recompute - 1));
      worst = std::max({worst, -f.keep, -f.swap, -f.recompute});
      const Problem::Tensor& tensor = rank.tensors[t];
      if (!tensor.recompute_s) worst = std::max(worst, f.recompute);
      if (tensor.must == Problem::Must::kKeep)
        worst = std::max(worst, 1 - f.keep);
      if (tensor.must == Problem::Must::kSwap)
        worst = std::max(worst, 1 - f.swap);
      if (tensor.must == Problem::Must::kRecompute) {
        worst = std::max(worst, 1 - f.recompute);
      }
      const double m = Moving(rank, tensor);
      swapped += m * tensor.bytes * f.swap;
      kept += m * tensor.bytes * f.keep;
    }
    const Rates most = MostOf(NaiveRatesOfKinds(rank, ranks[r]));
    for (size_t l = 0; l < p.links.size(); ++l) {
      if (std::count(rank.links.begin(), rank.links.end(), p.links[l].name)) {
        d2h[l] += most.d2h;
        h2d[l] += most.h2d;
        total[l] += most.total;
      }
    }
    for (size_t n = 0; n < p.numa.size(); ++n) {
      if (p.numa[n].id == rank.numa) host[n] += swapped + rank.host_fixed_bytes;
    }
    const double unit = rank.gpu_budget_bytes > 0 ? rank.gpu_budget_bytes : 1e9;
    worst = std::max(worst, (kept - rank.gpu_budget_bytes) / unit);
  }
  for (size_t l = 0; l < p.links.size(); ++l) {
    worst = std::max(worst, d2h[l] / p.links[l].d2h_bytes_per_s - 1);
    worst = std::max(worst, h2d[l] / p.links[l].h2d_bytes_per_s - 1);
    if (p.links[l].total_bytes_per_s) {
      worst = std::max(worst, total[l] / *p.links[l].total_bytes_per_s - 1);
    }
  }
  for (size_t n = 0; n < p.numa.size(); ++n) {
    const double budget = p.numa[n].host_budget_bytes;
    worst = std::max(worst, (host[n] - budget) / (budget > 0 ? budget : 1e9));
  }
  return worst;
}

SwapObjective Naive(const Problem& p, const std::vector<RankSwap>& ranks) {
  SwapObjective sum;
  for (size_t r = 0; r < p.ranks.size(); ++r) {
    const Problem::Rank& rank = p.ranks[r];
    double seconds = 0, windows = 0, bytes = 0;
    for (const Problem::Kind& kind : rank.kinds) {
      windows += static_cast<double>(kind.layers) *
                 (kind.forward_layer_s + kind.backward_layer_s);
    }
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const Problem::Tensor& tensor = rank.tensors[t];
      const double m = Moving(rank, tensor);
      seconds +=
          m * tensor.recompute_s.value_or(0) * ranks[r].tensors[t].recompute;
      bytes += m * tensor.bytes * ranks[r].tensors[t].swap;
    }
    sum.step_s = std::max(sum.step_s, windows + seconds);
    sum.recompute_s += seconds;
    sum.moved_bytes += 2 * bytes;
  }
  return sum;
}

bool AGridPointIsBetter(const NodeSwapProblem& p, const SwapObjective& found) {
  constexpr int kSteps = 12;
  for (int point = 0; point < 91 * 91; ++point) {
    std::vector<RankSwap> plan(1);
    for (int index : {point % 91, point / 91}) {  // swap + recompute <= 12
      int swap = 0;
      while (index > kSteps - swap) index -= kSteps - swap++ + 1;
      const double s = static_cast<double>(swap) / kSteps;
      const double c = static_cast<double>(index) / kSteps;
      plan[0].tensors.push_back({1 - s - c, s, c});
    }
    if (WorstBreach(p, plan) > 1e-12) continue;
    if (!NotWorse(found, Naive(p, plan))) return true;
  }
  return false;
}

}  // namespace sluice::planner
