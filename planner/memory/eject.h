// Ejection search (internal to the planner): a large-neighbourhood search that
// moves the items above a limit, for traces of any size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/problem.h"

namespace sluice::planner {

// Lowers the peak of `offsets`, a valid placement, towards `target` in steps,
// each with a slightly lower limit. A step takes out the items that end above
// the limit and places them below it: in a free gap, or else where the items in
// the way are easiest to place again; those are placed next. A chain of such
// moves is undone if it leaves more to be placed than before, and items that
// could not be placed get a higher cost. Ends at `target` or after about
// `visits` visits of items. Large problems use two threads; the result is the
// same with one. Returns nullopt if nothing better was found.
std::optional<Offsets> LowerByEjection(const Problem& problem, Offsets offsets,
                                       int64_t target, int64_t visits,
                                       const std::function<bool()>& expired);

}  // namespace sluice::planner
