// The MIP in a program of its own (internal to the planner), so that a crash,
// a hang or a print of CBC's costs its certificate and nothing else.
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "planner/memory/dsa_mip.h"

namespace sluice::planner {

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
