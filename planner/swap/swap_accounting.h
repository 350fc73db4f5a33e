// Computes the effects of a node's fractions: plain arithmetic on the rows of
// README.md, separate from the LP that chose them (internal to the planner).
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

// m: the number of layers of the tensor's kind that are not resident.
double MovingLayers(const NodeSwapProblem::Rank& rank,
                    const NodeSwapProblem::Tensor& tensor);
// Sum of all layers' windows: the step without recomputation.
double WindowSeconds(const NodeSwapProblem::Rank& rank);
bool IsOn(const NodeSwapProblem::Rank& rank, const std::string& link);
bool IsIn(const NodeSwapProblem::Rank& rank, const std::string& host);
// Bytes per second, in the pass with more, while layers of a kind run and each
// swaps `copied` bytes.
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
// The maximum over kinds if everything that may be swapped is swapped.
CopyRates RatesIfSwapped(const NodeSwapProblem::Rank& rank);
// Returns the rate that a link's row counts.
double RateOf(const CopyRates& rates, const CapacityRow& row);

// Returns every capacity of the node, with `used` 0: links' d2h, h2d and (if
// given) total; NUMA nodes; host limits; GPUs.
std::vector<CapacityRow> CapacitiesOf(const NodeSwapProblem& problem);
// Whether the row is in bytes; otherwise it is in bytes per second.
bool IsMemory(const CapacityRow& row);
// The unit of an excess, and the size of "one more".
double UnitOf(const CapacityRow& row);
double OneMore(const CapacityRow& row);
// Returns the problem with `more` added to a row's capacity.
NodeSwapProblem WithMore(const NodeSwapProblem& problem, const CapacityRow& row,
                         double more);

// Fills `used` and `binds`.
void Use(const NodeSwapProblem& problem, const NodeFractions& fractions,
         std::vector<CapacityRow>* rows);
SwapObjective ObjectiveOf(const NodeSwapProblem& problem,
                          const NodeFractions& fractions);
// Returns the slowest rank's step, including what its copies take beyond the
// windows.
double StepWithStalls(const NodeSwapProblem& problem,
                      const NodeFractions& fractions);
std::vector<RankSwap> RanksOf(const NodeSwapProblem& problem,
                              const NodeFractions& fractions);

}  // namespace sluice::planner
