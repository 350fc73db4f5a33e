// Random nodes for the swap planner, and the result of an LP solver that shares
// no code with Clp.
#pragma once

#include <random>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

// Returns a node of 1 to 8 ranks on 1 or 2 NUMA nodes. Each rank has a link of
// its own, maybe a shared switch, and up to 12 tensors. The limits are roomy,
// tight or infeasible.
NodeSwapProblem RandomNode(std::mt19937& random);

// Gives each rank up to three kinds of layers. The kinds have the same tensors
// with different sizes; kinds after the first may be frozen.
NodeSwapProblem WithKinds(NodeSwapProblem node, std::mt19937& random);

// Returns a node with links and memory that bind as tightly as for 8 ranks of
// 12 tensors.
NodeSwapProblem BusyNode(size_t ranks, size_t tensors);

// GLPK's result for the rows of planner/swap/README.md. GLPK's LP is written
// independently of the planner's, with a column for every fraction and rate.
struct Reference {
  bool feasible = false;
  double excess = 0;  // the least sum of excesses, if infeasible
  SwapObjective objective;
};
Reference SolveWithGlpk(const NodeSwapProblem& problem);

}  // namespace sluice::planner
