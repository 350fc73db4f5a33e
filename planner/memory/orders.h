// Orders in which the greedy arms place items (internal to the planner).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/memory/problem.h"

namespace sluice::planner {

// A permutation of item indices; the first is placed first.
using Order = std::vector<uint32_t>;

// Returns for each item how many items, itself included, live together with it.
std::vector<int64_t> NeighbourCounts(const Problem& problem);

struct NamedOrder {
  std::string name;
  Order order;
};

// Returns plain orders by one criterion each (size, lifetime, area, birth, …),
// and for each a variant that begins with the items alive at the peak slot.
// (Only those items decide whether the bound is met; the others fit around
// them.) The most promising orders come first. Ties are broken by a second
// criterion, then by the items' order.
std::vector<NamedOrder> GreedyOrders(const Problem& problem);

}  // namespace sluice::planner
