// The rows of planner/swap/README.md and its objectives, written out again.
#pragma once

#include <vector>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

// At least 1: what a difference is counted in.
double Near(double value);
// Lexicographic, equal within `tolerance` of what there is to choose.
bool NotWorse(const SwapObjective& a, const SwapObjective& b,
              double tolerance = 1e-9);
// The most by which a fraction row or a capacity (in its units) is broken.
double WorstBreach(const NodeSwapProblem& p,
                   const std::vector<RankSwap>& ranks);
SwapObjective Naive(const NodeSwapProblem& p,
                    const std::vector<RankSwap>& ranks);
// Whether a grid of twelfths of the fractions of 1 rank's 2 tensors has a point
// that keeps all rows and is better than `found`.
bool AGridPointIsBetter(const NodeSwapProblem& p, const SwapObjective& found);

}  // namespace sluice::planner
