// Answers one request for every method: how long a sequence each reaches on the
// same GPUs and how fast, with the best settings of each.
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
  planner::train::Request request;  // with the method that answers
  planner::train::Estimate estimate;
  planner::train::LongestSequence longest;
};

// Answers in the order of kMethods; each longest sequence has a step of at most
// `max_step_s`. The given settings are used for the requested method; those of
// other methods are searched. A method that cannot use these GPUs is left out,
// unless it is the requested one, which is an error.
absl::StatusOr<std::vector<MethodAnswer>> AnswerEveryMethod(
    const planner::train::Request& asked,
    const planner::train::GivenSettings& given, double max_step_s);

std::string MethodsTable(const std::vector<MethodAnswer>& methods);
nlohmann::ordered_json MethodsJson(const std::vector<MethodAnswer>& methods);

}  // namespace sluice::ctl
