// Random nodes for the swap planner, and the result of an LP solver that shares
// no code with Clp.
#pragma once

#include <random>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

// 1 to 8 ranks on 1 or 2 NUMA nodes, a link each and shared switches, up to 12
// tensors; from roomy to hopeless.
NodeSwapProblem RandomNode(std::mt19937& random);

// Gives the ranks up to three kinds of layers, which differ in everything
// except the tensors that they have; a later kind may be frozen.
NodeSwapProblem WithKinds(NodeSwapProblem node, std::mt19937& random);

// `ranks` ranks of `tensors` tensors with links and memory that bind as much as
// those of 8 ranks of 12.
NodeSwapProblem BusyNode(size_t ranks, size_t tensors);

// GLPK's result for the rows of planner/swap/README.md, written independently
// with a column for every fraction and every rate.
struct Reference {
  bool feasible = false;
  double excess = 0;  // the least sum, where infeasible
  SwapObjective objective;
};
Reference SolveWithGlpk(const NodeSwapProblem& problem);

}  // namespace sluice::planner
