// What a node's fractions come to: plain arithmetic on the rows of README.md,
// apart from the LP that chose them (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

using NodeFractions =
    std::vector<std::vector<plan::TokenFractions>>;  // rank, tensor

inline constexpr double kGiB = 1024.0 * 1024 * 1024;
inline constexpr double kGigaPerSecond = 1e9;

// m: the layers of a tensor's kind that move their tensors out of the window.
double MovingLayers(const NodeSwapProblem::Rank& rank,
                    const NodeSwapProblem::Tensor& tensor);
// All layers' windows: the step without recomputation.
double WindowSeconds(const NodeSwapProblem::Rank& rank);
bool IsOn(const NodeSwapProblem::Rank& rank, const std::string& link);
bool IsIn(const NodeSwapProblem::Rank& rank, const std::string& host);
// Copies per second, the worse of both passes, while layers of the kind run
// and each swaps `copied` bytes.
struct CopyRates {
  double d2h = 0;
  double h2d = 0;
  double total = 0;
};
CopyRates RatesOf(const NodeSwapProblem::Kind& kind, double copied);
// The rates of each kind of a rank's layers.
std::vector<CopyRates> RatesOfKinds(
    const NodeSwapProblem::Rank& rank,
    const std::vector<plan::TokenFractions>& fractions);
// The most of them where all that may be swapped is.
CopyRates RatesIfSwapped(const NodeSwapProblem::Rank& rank);
// That a link's row counts.
double RateOf(const CopyRates& rates, const CapacityRow& row);

// Every capacity of the node, nothing used of it yet: links' d2h, h2d and
// (where given) total; NUMA nodes; host limits; GPUs.
std::vector<CapacityRow> CapacitiesOf(const NodeSwapProblem& problem);
// In bytes; else in bytes per second.
bool IsMemory(const CapacityRow& row);
// The unit in which an excess, or "one more", is counted.
double UnitOf(const CapacityRow& row);
double OneMore(const CapacityRow& row);
// The problem with `more` of a row's capacity.
NodeSwapProblem WithMore(const NodeSwapProblem& problem, const CapacityRow& row,
                         double more);

// Fills `used` and `binds`.
void Use(const NodeSwapProblem& problem, const NodeFractions& fractions,
         std::vector<CapacityRow>* rows);
SwapObjective ObjectiveOf(const NodeSwapProblem& problem,
                          const NodeFractions& fractions);
// The slowest rank's step with what its copies take beside the windows.
double StepWithStalls(const NodeSwapProblem& problem,
                      const NodeFractions& fractions);
std::vector<RankSwap> RanksOf(const NodeSwapProblem& problem,
                              const NodeFractions& fractions);

}  // namespace sluice::planner
