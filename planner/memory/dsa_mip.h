// MEMO section 4.2's mixed-integer program for one problem, strengthened
// (internal to the planner); solved by CBC in cbc.cc.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

struct MipResult {
  // A placement better than the start, or nothing.
  std::optional<Offsets> offsets;
  // No placement has a lower peak, in units; at least the given bound.
  int64_t bound = 0;
};

// `start` is a valid placement and `bound` a proved lower bound on the peak,
// both in units. CBC is kept honest: the order it answers is turned into
// offsets in whole numbers here, and its bound is rounded down by more than
// its tolerances. It obeys the time limit loosely (an LP is not interrupted);
// the worker has a hard deadline. One solve at a time in a process.
MipResult SolveDsaMip(const Problem& problem, const Offsets& start,
                      int64_t bound, absl::Duration time_limit);

}  // namespace sluice::planner
