#include "planner/swap/swap_accounting.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;
using RowKind = CapacityRow::Kind;

constexpr double kBinds = 1e-6;  // relative accuracy of a plan's rows
constexpr double kSlowest = 1e-9;

// Bytes of all layers, by place.
struct Held {
  double kept = 0;
  double swapped = 0;  // in host memory
};

Held HeldOf(const SwapProblem::Rank& rank, const Fractions& fractions) {
  Held sum;
  for (size_t t = 0; t < rank.tensors.size(); ++t) {
    const SwapProblem::Tensor& tensor = rank.tensors[t];
    const double all = MovingLayers(rank, tensor) * tensor.bytes;
    sum.kept += all * fractions[t].keep;
    sum.swapped += all * fractions[t].swap;
  }
  return sum;
}

// Returns the bytes that a layer of kind k swaps beyond its fixed traffic.
double CopiedOf(const SwapProblem::Rank& rank, size_t k,
                const Fractions& fractions) {
  double sum = 0;
  for (size_t t = 0; t < rank.tensors.size(); ++t) {
    const SwapProblem::Tensor& tensor = rank.tensors[t];
    if (tensor.kind != k || tensor.traffic_in_fixed) continue;
    sum += tensor.bytes * fractions[t].swap;
  }
  return sum;
}

CopyRates RatesOf(const SwapProblem::Kind& kind, double copied) {
  const PassBytes bytes(kind, copied);
  const auto most = [&](double CopyRates::*way) {
    const auto rate = [way](const CopyRates& pass, double window) {
      return pass.*way > 0 ? pass.*way / window : 0;
    };
    return std::max(rate(bytes.forward, kind.forward_layer_s),
                    rate(bytes.backward, kind.backward_layer_s));
  };
  return {.d2h = most(&CopyRates::d2h),
          .h2d = most(&CopyRates::h2d),
          .total = most(&CopyRates::total)};
}

CopyRates PeakRates(const SwapProblem::Rank& rank, const Fractions& fractions) {
  CopyRates peak;
  for (const CopyRates& rates : RatesOfKinds(rank, fractions)) {
    peak.d2h = std::max(peak.d2h, rates.d2h);
    peak.h2d = std::max(peak.h2d, rates.h2d);
    peak.total = std::max(peak.total, rates.total);
  }
  return peak;
}

double AddedSeconds(const SwapProblem::Rank& rank, const Fractions& fractions) {
  double sum = 0;
  for (size_t t = 0; t < rank.tensors.size(); ++t) {
    const SwapProblem::Tensor& tensor = rank.tensors[t];
    sum += MovingLayers(rank, tensor) * tensor.recompute_s.value_or(0) *
           fractions[t].recompute;
  }
  return sum;
}

double UseOf(const SwapProblem& problem, const NodeFractions& fractions,
             const CapacityRow& row) {
  double used = 0;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    if (!Uses(problem, r, row)) continue;
    const SwapProblem::Rank& rank = problem.ranks[r];
    if (row.kind == RowKind::kGpu) {
      used += HeldOf(rank, fractions[r]).kept;
    } else if (IsMemory(row)) {
      used += HeldOf(rank, fractions[r]).swapped + rank.host_fixed_bytes;
    } else {
      used += RateOf(PeakRates(rank, fractions[r]), row);
    }
  }
  return used;
}

// Returns the seconds of a layer's pass: its window, or longer if its copies
// take longer. On an overloaded link, a rank's share is proportional to its
// use.
double PassSeconds(double window, double bytes, double rate,
                   const CapacityRow& link) {
  if (link.used <= link.capacity || rate <= 0) return window;
  return std::max(window, bytes * link.used / (rate * link.capacity));
}

// Returns the seconds by which one layer that swaps `copied` bytes exceeds its
// windows. `links` are the rows of the rank's links, `rates` its peak rates.
double LayerStall(const std::vector<CapacityRow>& links, const CopyRates& rates,
                  const SwapProblem::Kind& kind, double copied) {
  const PassBytes bytes(kind, copied);
  double forward = kind.forward_layer_s, backward = kind.backward_layer_s;
  for (const CapacityRow& link : links) {
    const double rate = RateOf(rates, link);
    forward = PassSeconds(forward, RateOf(bytes.forward, link), rate, link);
    backward = PassSeconds(backward, RateOf(bytes.backward, link), rate, link);
  }
  return (forward - kind.forward_layer_s) + (backward - kind.backward_layer_s);
}

std::vector<double> StallsOf(const SwapProblem& problem,
                             const NodeFractions& fractions) {
  std::vector<CapacityRow> rows = CapacitiesOf(problem);
  std::erase_if(rows, IsMemory);
  // Computes each rank's rates once, because a rank may use several links.
  std::vector<CopyRates> peaks;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    peaks.push_back(PeakRates(problem.ranks[r], fractions[r]));
    for (CapacityRow& row : rows) {
      if (Uses(problem, r, row)) row.used += RateOf(peaks[r], row);
    }
  }
  std::vector<double> stalls;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    const SwapProblem::Rank& rank = problem.ranks[r];
    std::vector<CapacityRow> links = rows;
    std::erase_if(
        links, [&](const CapacityRow& row) { return !Uses(problem, r, row); });
    double stall = 0;
    for (size_t k = 0; k < rank.kinds.size(); ++k) {
      const SwapProblem::Kind& kind = rank.kinds[k];
      const double copied = CopiedOf(rank, k, fractions[r]);
      const auto resident = static_cast<double>(kind.resident_layers);
      stall += (static_cast<double>(kind.layers) - resident) *
                   LayerStall(links, peaks[r], kind, copied) +
               resident * LayerStall(links, peaks[r], kind, 0);
    }
    stalls.push_back(stall);
  }
  return stalls;
}

}  // namespace

PassBytes::PassBytes(const SwapProblem::Kind& kind, double copied)
    : forward{.d2h = copied + kind.forward_d2h_fixed_bytes,
              .h2d = kind.forward_h2d_fixed_bytes},
      backward{.d2h = kind.backward_d2h_fixed_bytes,
               .h2d = copied + kind.backward_h2d_fixed_bytes} {
  forward.total = forward.d2h + forward.h2d;
  backward.total = backward.d2h + backward.h2d;
}

double MovingLayers(const SwapProblem::Rank& rank,
                    const SwapProblem::Tensor& tensor) {
  const SwapProblem::Kind& kind = rank.kinds[tensor.kind];
  return static_cast<double>(kind.layers - kind.resident_layers);
}

double WindowSeconds(const SwapProblem::Rank& rank) {
  double seconds = 0;
  for (const SwapProblem::Kind& kind : rank.kinds) {
    seconds += static_cast<double>(kind.layers) *
               (kind.forward_layer_s + kind.backward_layer_s);
  }
  return seconds;
}

std::string TensorName(const SwapProblem::Rank& rank,
                       const SwapProblem::Tensor& tensor) {
  return plan::FullName(rank.kinds[tensor.kind].name, tensor.name);
}

bool IsOn(const SwapProblem::Rank& rank, const std::string& link) {
  return std::ranges::find(rank.links, link) != rank.links.end();
}

bool IsIn(const SwapProblem::Rank& rank, const std::string& host) {
  return std::ranges::find(rank.hosts, host) != rank.hosts.end();
}

std::vector<CopyRates> RatesOfKinds(const SwapProblem::Rank& rank,
                                    const Fractions& fractions) {
  std::vector<CopyRates> rates;
  for (size_t k = 0; k < rank.kinds.size(); ++k) {
    rates.push_back(RatesOf(rank.kinds[k], CopiedOf(rank, k, fractions)));
  }
  return rates;
}

CopyRates RatesIfSwapped(const SwapProblem::Rank& rank) {
  Fractions all;
  for (const SwapProblem::Tensor& tensor : rank.tensors) {
    using Must = SwapProblem::Must;
    const bool free = tensor.must == Must::kNothing;
    const double most = 1 - tensor.given.keep.value_or(0);
    all.push_back({.swap = free ? tensor.given.swap.value_or(most)
                                : (tensor.must == Must::kSwap ? 1.0 : 0.0)});
  }
  return PeakRates(rank, all);
}

double RateOf(const CopyRates& rates, const CapacityRow& row) {
  return row.kind == RowKind::kLinkD2h   ? rates.d2h
         : row.kind == RowKind::kLinkH2d ? rates.h2d
                                         : rates.total;
}

std::vector<CapacityRow> CapacitiesOf(const SwapProblem& problem) {
  std::vector<CapacityRow> rows;
  const auto add = [&rows](RowKind kind, size_t index, double capacity) {
    rows.push_back({.kind = kind, .index = index, .capacity = capacity});
  };
  for (size_t l = 0; l < problem.links.size(); ++l) {
    const SwapProblem::Link& link = problem.links[l];
    add(RowKind::kLinkD2h, l, link.d2h_bytes_per_s);
    add(RowKind::kLinkH2d, l, link.h2d_bytes_per_s);
    if (link.total_bytes_per_s) {
      add(RowKind::kLinkTotal, l, *link.total_bytes_per_s);
    }
  }
  for (size_t n = 0; n < problem.numa.size(); ++n) {
    add(RowKind::kHost, n, problem.numa[n].host_budget_bytes);
  }
  for (size_t h = 0; h < problem.hosts.size(); ++h) {
    add(RowKind::kLimit, h, problem.hosts[h].budget_bytes);
  }
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    add(RowKind::kGpu, r, problem.ranks[r].gpu_budget_bytes);
  }
  return rows;
}

bool Uses(const SwapProblem& problem, size_t r, const CapacityRow& row) {
  const SwapProblem::Rank& rank = problem.ranks[r];
  switch (row.kind) {
    case RowKind::kHost:
      return rank.numa == problem.numa[row.index].id;
    case RowKind::kLimit:
      return IsIn(rank, problem.hosts[row.index].name);
    case RowKind::kGpu:
      return r == row.index;
    default:
      return IsOn(rank, problem.links[row.index].name);
  }
}

bool IsMemory(const CapacityRow& row) {
  return row.kind == RowKind::kHost || row.kind == RowKind::kLimit ||
         row.kind == RowKind::kGpu;
}

double OneMore(const CapacityRow& row) {
  return IsMemory(row) ? kGiB : kGigaPerSecond;
}

double UnitOf(const CapacityRow& row) {
  return row.capacity > 0 ? row.capacity : OneMore(row);
}

SwapProblem WithOneMore(const SwapProblem& problem, const CapacityRow& row) {
  SwapProblem changed = problem;
  const double more = OneMore(row);
  switch (row.kind) {
    case RowKind::kLinkD2h:
      changed.links[row.index].d2h_bytes_per_s += more;
      break;
    case RowKind::kLinkH2d:
      changed.links[row.index].h2d_bytes_per_s += more;
      break;
    case RowKind::kLinkTotal:
      *changed.links[row.index].total_bytes_per_s += more;
      break;
    case RowKind::kHost:
      changed.numa[row.index].host_budget_bytes += more;
      break;
    case RowKind::kLimit:
      changed.hosts[row.index].budget_bytes += more;
      break;
    case RowKind::kGpu:
      changed.ranks[row.index].gpu_budget_bytes += more;
      break;
  }
  return changed;
}

void Use(const SwapProblem& problem, const NodeFractions& fractions,
         std::vector<CapacityRow>* rows) {
  for (CapacityRow& row : *rows) {
    row.used = UseOf(problem, fractions, row);
    row.binds = row.used >= row.capacity * (1 - kBinds);
  }
}

SwapObjective ObjectiveOf(const SwapProblem& problem,
                          const NodeFractions& fractions) {
  SwapObjective sum;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    const SwapProblem::Rank& rank = problem.ranks[r];
    const double added = AddedSeconds(rank, fractions[r]);
    sum.step_s = std::max(sum.step_s, WindowSeconds(rank) + added);
    sum.recompute_s += added;
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const SwapProblem::Tensor& tensor = rank.tensors[t];
      if (tensor.traffic_in_fixed) continue;
      sum.moved_bytes +=
          2 * MovingLayers(rank, tensor) * tensor.bytes * fractions[r][t].swap;
    }
  }
  return sum;
}

double StepWithStalls(const SwapProblem& problem,
                      const NodeFractions& fractions) {
  double slowest = 0;
  for (const RankSwap& rank : RanksOf(problem, fractions)) {
    slowest = std::max(slowest, rank.step_s + rank.stall_s);
  }
  return slowest;
}

std::vector<RankSwap> RanksOf(const SwapProblem& problem,
                              const NodeFractions& fractions) {
  const double slowest = ObjectiveOf(problem, fractions).step_s;
  const std::vector<double> stalls = StallsOf(problem, fractions);
  std::vector<RankSwap> ranks;
  for (size_t r = 0; r < problem.ranks.size(); ++r) {
    const SwapProblem::Rank& rank = problem.ranks[r];
    RankSwap swap{.added_s = AddedSeconds(rank, fractions[r]),
                  .tensors = fractions[r]};
    swap.step_s = WindowSeconds(rank) + swap.added_s;
    swap.stall_s = stalls[r];
    swap.slowest = swap.step_s >= slowest * (1 - kSlowest);
    ranks.push_back(std::move(swap));
  }
  return ranks;
}

std::string RowName(const SwapProblem& problem, const CapacityRow& row) {
  switch (row.kind) {
    case RowKind::kHost:
      return fmt::format("host of NUMA node {}", problem.numa[row.index].id);
    case RowKind::kLimit:
      return problem.hosts[row.index].name;
    case RowKind::kGpu:
      return "GPU of rank " + problem.ranks[row.index].name;
    default:
      return fmt::format("link {} {}", problem.links[row.index].name,
                         row.kind == RowKind::kLinkD2h   ? "d2h"
                         : row.kind == RowKind::kLinkH2d ? "h2d"
                                                         : "total");
  }
}

}  // namespace sluice::planner
