// Greedy placement (internal to the planner): places items one by one, each
// into a gap between placed items that are alive at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/memory/occupancy.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

struct NamedOrder {
  std::string name;
  Order order;
};

// Returns plain orders by one criterion each (size, lifetime, area, birth, …),
// and for each a variant that begins with the items alive at the peak slot (the
// sizes of these items sum to the bound). The most promising orders come first.
// Ties are broken by a second criterion, then by the items' order.
std::vector<NamedOrder> GreedyOrders(const Problem& problem);

// Places the items of `order` into `taken`. Returns nullopt as soon as an item
// would end above `limit`, or when `expired` returns true. Offsets of items not
// in `order` are 0.
std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit, Occupancy* taken,
                                    const Expired& expired);

struct GreedyResult {
  Offsets offsets;
  int64_t peak = 0;
  std::string method;  // "greedy:size:first"
};

// Items that must not move: items[i] lies at offsets[i].
struct Frozen {
  Order items;
  Offsets offsets;
};

// Tries every order with both fits, in the given sequence, around the frozen
// items, which the orders do not list. Returns the best plan below `peak`, or
// empty `offsets`. Stops at the first plan with a peak of at most `target`, or
// when `expired` returns true.
GreedyResult RaceOrders(const Problem& problem,
                        const std::vector<NamedOrder>& orders,
                        const Frozen& frozen, int64_t peak, int64_t target,
                        const Expired& expired);

// Races the orders of GreedyOrders, with nothing frozen.
GreedyResult GreedyRace(const Problem& problem, int64_t peak, int64_t target,
                        const Expired& expired);

}  // namespace sluice::planner
