// Formats a node's swap plan as text for people and as JSON.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/swap/node_swap.h"

namespace sluice::ctl {

std::string RenderSwap(const planner::NodeSwapProblem& problem,
                       const planner::NodeSwapResult& result,
                       planner::SwapPolicy policy);
// Returns whether `row` is the capacity of a link. Other rows are memory or
// limits.
bool IsLink(const planner::CapacityRow& row);
// Formats one JSON object on one line.
std::string SwapJson(const planner::NodeSwapProblem& problem,
                     const planner::NodeSwapResult& result,
                     planner::SwapPolicy policy);

}  // namespace sluice::ctl
