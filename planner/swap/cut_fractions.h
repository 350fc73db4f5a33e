// From the LP's fractions to a plan's (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/swap/given_node.h"
#include "planner/swap/node_swap.h"

namespace sluice::planner {

// The LP's answer to `problem`, which is `node`'s, in multiples of 1/4096 and
// within every limit to the byte; where no cut of it is, what is given alone.
// What is given stays as it is. REQUIRES: what is given fits (refusals.h).
std::vector<Fractions> CutFractions(const GivenNode& node,
                                    const NodeSwapProblem& problem,
                                    const NodeSwapResult& result);

}  // namespace sluice::planner
