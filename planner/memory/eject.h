// Ejection search (internal to the planner): large-neighbourhood search on
// what is above a limit, for traces of any size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/problem.h"

namespace sluice::planner {

// Lowers `offsets`, a valid placement, towards `target` in steps, each a
// little lower than the last. For a step, what ends above the limit is taken
// out and placed below it: where it fits, or else where those in the way are
// easiest to place again; they are next. A chain of such moves that leaves
// more to be placed than it found is taken back, and what could not be placed
// weighs more. Ends at `target` or after about `visits` looks at an item, in
// two threads where there are two; the outcome is that of one. nullopt: none
// better.
std::optional<Offsets> LowerByEjection(const Problem& problem, Offsets offsets,
                                       int64_t target, int64_t visits,
                                       const std::function<bool()>& expired);

}  // namespace sluice::planner
