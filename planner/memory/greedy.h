// Greedy placement (internal to the planner): items one by one, each into a
// gap left by those placed before it that live together with it.
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

// Places items of `order` into `taken`. Gives up (nullopt) as soon as an item
// would end above `limit`, since the caller has something as good already, or
// when `expired` says so. Offsets of items not in `order` are 0.
std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit, Occupancy* taken,
                                    const std::function<bool()>& expired);

// The same on an empty memory, however long it takes.
std::optional<Offsets> PlaceInOrder(const Problem& problem, const Order& order,
                                    Fit fit, int64_t limit);

struct GreedyResult {
  Offsets offsets;
  int64_t peak = 0;
  std::string method;  // "greedy:size:first"
};

// Items that stay where they are: items[i] at offsets[i].
struct Frozen {
  Order items;
  Offsets offsets;
};

// Runs every order with both fits, in listed order, around what is frozen,
// and keeps the best below `peak`, which is known already; stops at the first
// of at most `target`, or when `expired` says so. With none below, `offsets`
// is empty. Orders have all items but the frozen.
GreedyResult RaceOrders(const Problem& problem,
                        const std::vector<NamedOrder>& orders,
                        const Frozen& frozen, int64_t peak, int64_t target,
                        const std::function<bool()>& expired);

// The same of GreedyOrders, with nothing frozen.
GreedyResult GreedyRace(const Problem& problem, int64_t peak, int64_t target,
                        const std::function<bool()>& expired);

}  // namespace sluice::planner
