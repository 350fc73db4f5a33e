// MEMO's policy: one alpha per rank, each chosen independently (internal to the
// planner).
#pragma once

#include <string>
#include <vector>

#include "planner/swap/node_swap.h"
#include "planner/swap/swap_accounting.h"

namespace sluice::planner {

struct MemoPlan {
  std::vector<double> alpha;  // one per rank
  NodeFractions fractions;
  // One line if no alpha fits; the other fields are empty then.
  std::string refusal;
};

// Divides every shared capacity evenly among its ranks, and gives each rank the
// largest alpha that fits its part. Keeps only what must be kept.
MemoPlan PlanMemo(const NodeSwapProblem& problem);

// Returns a rank's fractions at an alpha.
std::vector<plan::TokenFractions> AtAlpha(const NodeSwapProblem::Rank& rank,
                                          double alpha);

}  // namespace sluice::planner
