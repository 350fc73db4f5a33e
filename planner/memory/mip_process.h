// MEMO section 4.2's mixed-integer program for one problem, strengthened
// (internal to the planner); solved by CBC in cbc.cc, in a program of its own,
// so that a crash, a hang or a print costs its certificate and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

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

// Runs SolveDsaMip in `program mip` over a pair of pipes, or in this process if
// `program` is empty. The helper is killed at the limit. Its answer is not
// trusted: a placement is checked and corrected, and a bound must lie between
// `bound` and the start's peak. Without a valid answer the result has nothing
// new. `stopped` is called ten times a second; true ends the helper.
MipResult SolveMip(const Problem& problem, const Offsets& start, int64_t bound,
                   absl::Duration time_limit, const std::string& program,
                   const std::function<bool()>& stopped);

// What the helper does: reads a question from `in_fd`, writes the answer to
// `out_fd`. The exit status of the program.
int ServeMip(int in_fd, int out_fd);

}  // namespace sluice::planner
