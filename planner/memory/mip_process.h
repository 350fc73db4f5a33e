// MEMO section 4.2's mixed-integer program, strengthened, for one problem
// (internal to the planner). SolveMip runs CBC (cbc.cc) in a separate process,
// so that a crash or hang of CBC costs only the proof.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "planner/memory/problem.h"

namespace sluice::planner {

struct MipResult {
  // A placement with a lower peak than the start's, if one was found.
  std::optional<Offsets> offsets;
  // A proved lower bound of the peak, in units; at least the given bound.
  int64_t bound = 0;
};

// Solves the program in this process, one at a time. `start` is a valid
// placement, and `bound` a proved lower bound of the peak, both in units. CBC's
// answer is not trusted: offsets are recomputed in integers from its order, and
// its bound is lowered by more than its tolerances. CBC may exceed the time
// limit, because it does not interrupt an LP.
MipResult SolveDsaMip(const Problem& problem, const Offsets& start,
                      int64_t bound, absl::Duration time_limit);

// Runs SolveDsaMip in a helper process, `program mip`, with memfds for question
// and answer, or in this process if `program` is empty. The helper is killed at
// the time limit, or when `stopped`, which is called ten times a second,
// returns true. The helper's placement is used only if it is valid, and its
// bound only if it lies between `bound` and the lowest known peak. Without a
// valid answer the result has no placement and the given bound.
MipResult SolveMip(const Problem& problem, const Offsets& start, int64_t bound,
                   absl::Duration time_limit, const std::string& program,
                   const std::function<bool()>& stopped);

// The helper's main function. Returns the program's exit status.
int ServeMip(int in_fd, int out_fd);

}  // namespace sluice::planner
