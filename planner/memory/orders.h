// Orders in which greedy arms take items (internal to the planner).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

// A permutation of item indices; the first is placed first.
using Order = std::vector<uint32_t>;

// How many items (itself too) each lives together with.
std::vector<int64_t> NeighbourCounts(const Problem& problem);

struct NamedOrder {
  std::string name;
  Order order;
};

// Plain orders by one criterion each (size, lifetime, area, birth, …), each
// led by its variant with the items alive at the peak slot first (they alone
// decide whether the bound is met; where there is room, the rest fits around
// them). The likely best come first. Ties go by the second criterion, then
// by request.
std::vector<NamedOrder> GreedyOrders(const Problem& problem);

}  // namespace sluice::planner
