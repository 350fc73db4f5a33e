// Makes plans in O(n log n) by simulating an allocator over time (internal to
// the planner).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/problem.h"

namespace sluice::planner {

// Simulates an online allocator: best fit at every birth, merging of free
// neighbours at every death. If `expired` returns true, stacks all items on top
// of each other instead.
Offsets ReplayAllocator(const Problem& problem,
                        const std::function<bool()>& expired);

// How SweepFromPeak stacks the items of the peak slot.
enum class Stack {
  // Sorted by birth and divided into sqrt(n) groups, each sorted by death.
  // Items that are born or die together then leave one wide gap.
  kGroups,
  kBySize,
};

// Stacks the items of the peak slot and sweeps from there in both directions:
// forward for items born later, and backward for items that die before it. So
// the plan has no gaps where memory is scarcest. A free range is chosen by the
// bytes it leaves over, and by how close its neighbours' deaths are to the
// item's. Each half takes the best result of several weights of the two; the
// halves run in parallel. Returns nullopt if no plan is below `limit`. Ends
// early at `target` and when `expired` returns true.
std::optional<Offsets> SweepFromPeak(const Problem& problem, Stack stack,
                                     int64_t limit, int64_t target,
                                     const std::function<bool()>& expired);

}  // namespace sluice::planner
