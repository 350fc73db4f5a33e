// A node's swap plan as text for people, and as JSON.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/swap/node_swap.h"

namespace sluice::ctl {

std::string RenderSwap(const planner::NodeSwapProblem& problem,
                       const planner::NodeSwapResult& result,
                       planner::SwapPolicy policy);
// One object, one line.
std::string SwapJson(const planner::NodeSwapProblem& problem,
                     const planner::NodeSwapResult& result,
                     planner::SwapPolicy policy);

// "link pcie0 d2h", "host of NUMA node 0", "GPU of rank 3".
std::string RowName(const planner::NodeSwapProblem& problem,
                    const planner::CapacityRow& row);

}  // namespace sluice::ctl
