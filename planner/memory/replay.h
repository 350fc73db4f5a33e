// Plans in O(n log n) from sweeps over time, as an allocator makes them
// (internal to the planner).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/problem.h"

namespace sluice::planner {

// What an online allocator would do: best fit at every birth, merging free
// neighbours at every death. When `expired` first: all on top of each other.
Offsets ReplayAllocator(const Problem& problem,
                        const std::function<bool()>& expired);

// How the items of the peak slot lie on each other.
enum class Stack {
  // Square root of n groups by birth, each by death: what dies together, in
  // either direction of time, leaves one wide gap.
  kGroups,
  kBySize,
};

// Stacks the items of the peak slot and sweeps outward from there, forward for
// those born later and backward for those that die before it, so that the plan
// is without gaps where memory is scarcest. A free range is chosen by what it
// would leave over and by how close the deaths of its neighbours are. Each
// half, in a thread of its own, takes the best of several weights of the two.
// nullopt: none below `limit`. Ends early at `target` and when `expired`.
std::optional<Offsets> SweepFromPeak(const Problem& problem, Stack stack,
                                     int64_t limit, int64_t target,
                                     const std::function<bool()>& expired);

}  // namespace sluice::planner
