// MEMO's policy: one alpha per rank, each for itself (internal to the planner).
#pragma once

#include <string>
#include <vector>

#include "planner/swap/node_swap.h"
#include "planner/swap/swap_accounting.h"

namespace sluice::planner {

struct MemoPlan {
  std::vector<double> alpha;  // of each rank
  NodeFractions fractions;
  std::string refusal;  // one line where none fits; the rest is empty then
};

// Every shared capacity is divided by the ranks on it; of a rank's part, alpha
// as large as possible. Nothing is kept but what must be.
MemoPlan PlanMemo(const NodeSwapProblem& problem);

// A rank's fractions at an alpha.
std::vector<plan::TokenFractions> AtAlpha(const NodeSwapProblem::Rank& rank,
                                          double alpha);

}  // namespace sluice::planner
