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
// (Those alone decide whether the bound is met; the other items fit around them
// where there is room.) The most promising orders come first. Ties go by the
// second criterion, then by request.
std::vector<NamedOrder> GreedyOrders(const Problem& problem);

}  // namespace sluice::planner
