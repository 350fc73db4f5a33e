// MEMO's policy: each rank has one alpha, which is chosen independently of the
// other ranks (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "planner/swap/node_swap.h"
#include "planner/swap/swap_accounting.h"

namespace sluice::planner {

struct MemoPlan {
  std::vector<double> alpha;  // one per rank
  NodeFractions fractions;
  // The reason in one line if no alpha fits. The other fields are empty then.
  std::string refusal;
};

// Divides every shared capacity evenly among its ranks, and gives each rank the
// largest alpha that fits its part. Keeps on the GPU only what must be kept.
MemoPlan PlanMemo(const NodeSwapProblem& problem);

}  // namespace sluice::planner
