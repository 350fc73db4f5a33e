// The rows and objectives of planner/swap/README.md, written independently.
#pragma once

#include <vector>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

// Returns the unit of a difference, at least 1.
double Near(double value);
// Compares lexicographically; values within `tolerance` of the total choice are
// equal.
bool NotWorse(const SwapObjective& a, const SwapObjective& b,
              double tolerance = 1e-9);
// Returns the most by which a fraction row or a capacity (in its units) is
// violated.
double WorstBreach(const NodeSwapProblem& p,
                   const std::vector<RankSwap>& ranks);
SwapObjective Naive(const NodeSwapProblem& p,
                    const std::vector<RankSwap>& ranks);
// Returns whether a grid of twelfths of the fractions of 1 rank's 2 tensors has
// a point that satisfies all rows and is better than `found`.
bool AGridPointIsBetter(const NodeSwapProblem& p, const SwapObjective& found);

}  // namespace sluice::planner
