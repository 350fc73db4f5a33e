// Estimates one request with every method: the longest sequence that each
// reaches on the same GPUs, and its speed, with the best settings of each.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/train/search.h"

namespace sluice::ctl {

struct MethodAnswer {
  planner::train::Request request;  // the request with this answer's method
  planner::train::Estimate estimate;
  planner::train::LongestSequence longest;
};

// Returns the answers in the order of kMethods. A step with the longest
// sequence takes at most `max_step_s`. The given settings apply to the
// requested method; settings of other methods are searched. A method that
// cannot use these GPUs is left out; if it is the requested one, this is an
// error.
absl::StatusOr<std::vector<MethodAnswer>> AnswerEveryMethod(
    const planner::train::Request& asked,
    const planner::train::GivenSettings& given, double max_step_s);

std::string MethodsTable(const std::vector<MethodAnswer>& methods);
nlohmann::ordered_json MethodsJson(const std::vector<MethodAnswer>& methods);

}  // namespace sluice::ctl
