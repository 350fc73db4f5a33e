// Reads a node that people wrote in JSON, for `sluicectl plan swap`.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "planner/swap/node_swap.h"

namespace sluice::ctl {

// InvalidArgument: a key is unknown or missing, or a value has the wrong type
// or is negative. The message is one line with the key's path.
absl::StatusOr<planner::NodeSwapProblem> ReadSwapProblem(std::string_view json);

}  // namespace sluice::ctl
