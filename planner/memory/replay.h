// What an online allocator would do (internal to the planner): a plan in
// O(n log n), so that there is one before any clock can run out.
#pragma once

#include "planner/memory/problem.h"

namespace sluice::planner {

// Best fit at every birth, merging free neighbours at every death.
Offsets ReplayAllocator(const Problem& problem);

}  // namespace sluice::planner
