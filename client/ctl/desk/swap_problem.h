// A node as people write it in JSON, for `sluicectl plan swap`.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "planner/swap/node_swap.h"

namespace sluice::ctl {

// InvalidArgument in one line with the path of what is wrong: a key that is
// unknown or missing, a value of the wrong type or below 0.
absl::StatusOr<planner::NodeSwapProblem> ReadSwapProblem(std::string_view json);

}  // namespace sluice::ctl
