// The rows and objectives of planner/swap/README.md, written independently of
// the planner.
#pragma once

#include <vector>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

// Returns |value|, at least 1, as the unit of a difference.
double Near(double value);
// Returns whether `a` is at most `b`: by step, then recomputation, then moved
// bytes. Times that differ by at most `tolerance` of a step count as equal.
bool NotWorse(const SwapObjective& a, const SwapObjective& b,
              double tolerance = 1e-9);
// Returns the largest violation of a fraction row, or of a capacity as a part
// of the capacity.
double WorstBreach(const NodeSwapProblem& p,
                   const std::vector<RankSwap>& ranks);
SwapObjective Naive(const NodeSwapProblem& p,
                    const std::vector<RankSwap>& ranks);
// Returns whether some plan of one rank's two tensors, with fractions in
// twelfths, satisfies all rows and is better than `found`.
bool AGridPointIsBetter(const NodeSwapProblem& p, const SwapObjective& found);

}  // namespace sluice::planner
