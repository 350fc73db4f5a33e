// Solves the window around the peak exactly, freezes its items and places the
// rest greedily (internal to the planner). It is for traces that are too large
// for the search and have one decisive peak.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/memory/problem.h"

namespace sluice::planner {

// Places the items that live in a window of slots around the peak by canonical
// search within `target`, freezes them, and places the others greedily in
// several orders. Then tries wider windows. Ends at the first placement with a
// peak of at most `target`. Returns nullopt if no placement is better than
// `peak`.
std::optional<Offsets> SolveWindow(const Problem& problem, int64_t peak,
                                   int64_t target,
                                   const std::function<bool()>& expired);

}  // namespace sluice::planner
