// Solves MEMO section 4.2's mixed-integer program, strengthened, for one
// problem (internal to the planner). CBC (cbc.cc) runs in a process of its own,
// so that a crash, a hang or a print costs only the proof.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

struct MipResult {
  // A placement better than the start, if one was found.
  std::optional<Offsets> offsets;
  // Proved: no placement has a lower peak, in units. At least the given bound.
  int64_t bound = 0;
};

// Solves the program in this process. `start` is a valid placement and `bound`
// a proved lower bound on the peak, both in units. CBC's answer is not trusted:
// its order is turned into offsets in integers, and its bound is rounded down
// by more than its tolerances. CBC obeys the time limit loosely (an LP is not
// interrupted); the worker has a hard deadline. One solve at a time in a
// process.
MipResult SolveDsaMip(const Problem& problem, const Offsets& start,
                      int64_t bound, absl::Duration time_limit);

// Runs SolveDsaMip in `program mip` over a pair of memfds, or in this process
// if `program` is empty. The helper is killed at the time limit. Its answer is
// checked: a placement is validated and corrected, and a bound must lie between
// `bound` and the start's peak. Without a valid answer the result has no
// placement and the given bound. `stopped` is called ten times a second; true
// ends the helper.
MipResult SolveMip(const Problem& problem, const Offsets& start, int64_t bound,
                   absl::Duration time_limit, const std::string& program,
                   const std::function<bool()>& stopped);

// The helper's main function: reads a question from `in_fd` and writes the
// answer to `out_fd`. Returns the program's exit status.
int ServeMip(int in_fd, int out_fd);

}  // namespace sluice::planner
