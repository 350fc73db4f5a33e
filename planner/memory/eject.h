// Ejection search (internal to the planner): a large-neighbourhood search that
// moves items down that end above a limit. It works for traces of any size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/problem.h"

namespace sluice::planner {

// Lowers the peak of `offsets`, a valid placement, towards `target` in steps,
// each with a slightly lower limit. A step removes the items that end above the
// limit and places each one below it: in a free gap, or else where it must
// eject the items that are easiest to place again. Ejected items are placed
// next. Such a chain of moves is undone if more is without a place after it
// than before, and items that could not be placed get a higher cost. Ends at
// `target` or after about `visits` visits of items. Large problems use two
// threads, with the same result as one. Returns nullopt if nothing better was
// found.
std::optional<Offsets> LowerByEjection(const Problem& problem, Offsets offsets,
                                       int64_t target, int64_t visits,
                                       const std::function<bool()>& expired);

}  // namespace sluice::planner
