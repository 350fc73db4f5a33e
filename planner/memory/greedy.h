// Greedy placement (internal to the planner): places items one by one, each
// into a gap between placed items that are alive at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/memory/occupancy.h"
#include "planner/memory/orders.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

// Places the items of `order` into `taken`. Returns nullopt as soon as an item
// would end above `limit` (the caller has a plan with a lower peak), or when
// `expired` returns true. Offsets of items not in `order` are 0.
std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit, Occupancy* taken,
                                    const std::function<bool()>& expired);

// Places the items into empty memory, without a deadline.
std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit);

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
// items. Keeps the best plan below `peak`, the peak of a known plan. Stops at
// the first plan with a peak of at most `target`, or when `expired` returns
// true. `offsets` is empty if no plan is below `peak`. Each order lists all
// items except the frozen ones.
GreedyResult RaceOrders(const Problem& problem,
                        const std::vector<NamedOrder>& orders,
                        const Frozen& frozen, int64_t peak, int64_t target,
                        const std::function<bool()>& expired);

// Calls RaceOrders with the orders of GreedyOrders and nothing frozen.
GreedyResult GreedyRace(const Problem& problem, int64_t peak, int64_t target,
                        const std::function<bool()>& expired);

}  // namespace sluice::planner
