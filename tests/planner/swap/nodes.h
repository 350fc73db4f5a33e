// Random nodes for the swap planner, and what an LP solver that shares no code
// with Clp says about a node.
#pragma once

#include <random>

#include "planner/swap/node_swap.h"

namespace sluice::planner {

// 1 to 8 ranks on 1 or 2 NUMA nodes, a link each and shared switches, up to 12
// tensors; from roomy to hopeless.
NodeSwapProblem RandomNode(std::mt19937& random);

// The node with ranks of up to three kinds of layers, unlike in everything but
// which tensors they have; a later kind may be frozen.
NodeSwapProblem WithKinds(NodeSwapProblem node, std::mt19937& random);

// `ranks` ranks of `tensors` tensors with links and memory that bind as much as
// those of 8 ranks of 12.
NodeSwapProblem BusyNode(size_t ranks, size_t tensors);

// GLPK's word on the rows of planner/swap/README.md, written out with a column
// for every fraction and every rate.
struct Reference {
  bool feasible = false;
  double excess = 0;  // the least sum, where infeasible
  SwapObjective objective;
};
Reference SolveWithGlpk(const NodeSwapProblem& problem);

}  // namespace sluice::planner
