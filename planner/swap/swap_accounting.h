// Computes the rates, the use of capacities and the objectives of given
// fractions, without the LP that chose the fractions (internal to the planner).
#pragma once

#include <vector>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

using NodeFractions = std::vector<Fractions>;  // by rank

inline constexpr double kGiB = 1024.0 * 1024 * 1024;
inline constexpr double kGigaPerSecond = 1e9;

// Returns m of README.md: layers of the tensor's kind that are not resident.
double MovingLayers(const NodeSwapProblem::Rank& rank,
                    const NodeSwapProblem::Tensor& tensor);
// Returns the sum of all layers' windows: the step without recomputation.
double WindowSeconds(const NodeSwapProblem::Rank& rank);
bool IsOn(const NodeSwapProblem::Rank& rank, const std::string& link);
bool IsIn(const NodeSwapProblem::Rank& rank, const std::string& host);
// Copy rates in bytes per second by direction, in the pass that needs more,
// while layers of one kind run. PassBytes holds bytes in this type.
struct CopyRates {
  double d2h = 0;
  double h2d = 0;
  double total = 0;
};
// The bytes that a layer's passes copy if it swaps `copied` bytes.
struct PassBytes {
  PassBytes(const NodeSwapProblem::Kind& kind, double copied);
  CopyRates forward, backward;
};
std::vector<CopyRates> RatesOfKinds(const NodeSwapProblem::Rank& rank,
                                    const Fractions& fractions);
// Returns the maximum rates over kinds if the rank swaps all that it may swap.
CopyRates RatesIfSwapped(const NodeSwapProblem::Rank& rank);
// Returns the rate of the direction that a link's row limits.
double RateOf(const CopyRates& rates, const CapacityRow& row);

// Returns every capacity of the node, with `used` 0: links' d2h, h2d and (if
// given) total; NUMA nodes; host limits; GPUs.
std::vector<CapacityRow> CapacitiesOf(const NodeSwapProblem& problem);
// Returns whether rank r takes a part of the row's capacity.
bool Uses(const NodeSwapProblem& problem, size_t r, const CapacityRow& row);
// Returns whether the row is in bytes and not in bytes per second.
bool IsMemory(const CapacityRow& row);
// UnitOf returns the unit of `excess`: the capacity, or OneMore if it is 0.
// OneMore returns 1 GiB or 1 GB/s.
double UnitOf(const CapacityRow& row);
double OneMore(const CapacityRow& row);
// Returns the problem with OneMore added to a row's capacity.
NodeSwapProblem WithOneMore(const NodeSwapProblem& problem,
                            const CapacityRow& row);

// Sets `used` and `binds` of the rows.
void Use(const NodeSwapProblem& problem, const NodeFractions& fractions,
         std::vector<CapacityRow>* rows);
SwapObjective ObjectiveOf(const NodeSwapProblem& problem,
                          const NodeFractions& fractions);
// Returns the seconds of the slowest rank's step, including the time by which
// copies exceed the windows.
double StepWithStalls(const NodeSwapProblem& problem,
                      const NodeFractions& fractions);
std::vector<RankSwap> RanksOf(const NodeSwapProblem& problem,
                              const NodeFractions& fractions);

}  // namespace sluice::planner
