// A node's swap plan as text for people and as JSON.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/swap/node_swap.h"

namespace sluice::ctl {

std::string RenderSwap(const planner::NodeSwapProblem& problem,
                       const planner::NodeSwapResult& result,
                       planner::SwapPolicy policy);
// Returns whether `row` belongs to a link and not to memory or a limit.
bool IsLink(const planner::CapacityRow& row);
// One object on one line.
std::string SwapJson(const planner::NodeSwapProblem& problem,
                     const planner::NodeSwapResult& result,
                     planner::SwapPolicy policy);

}  // namespace sluice::ctl
