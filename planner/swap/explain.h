// A node's swap plan in words and numbers for people (internal to the
// planner): `sluicectl plan show ID --explain` prints them.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "planner/swap/alpha.h"
#include "planner/swap/node_swap.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// Links and host budgets: what is used of them, and what one more buys.
std::vector<plan::PlanLimit> LimitsOf(const NodeSwapProblem& problem,
                                      const NodeSwapResult& result);

// The first full link of a rank; empty: none is.
std::string FullLink(const NodeSwapProblem& problem,
                     const NodeSwapResult& result, size_t rank);

// Why each class is swapped or recomputed, one line each. `full` is what keeps
// alpha down, where something does.
std::vector<std::string> WhyOf(const plan::RankProfile& profile,
                               const SwapChoice& choice,
                               const std::string& full);

}  // namespace sluice::planner
