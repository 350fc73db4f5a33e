// Squeaky wheel (internal to the planner): place, blame those that ended too
// high, let them go earlier, place again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/greedy.h"

namespace sluice::planner {

// Starts from `order`; the best peak known is `peak`. Ends at the first
// placement of at most `target`, or after `placements` items were placed, or
// a few rounds where a round takes long. nullopt: none better than `peak`.
std::optional<Offsets> SqueakyWheel(const Problem& problem, const Order& order,
                                    Fit fit, int64_t peak, int64_t target,
                                    int64_t placements,
                                    const std::function<bool()>& expired);

}  // namespace sluice::planner
