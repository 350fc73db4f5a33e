// One request answered for every method: which of them reaches how far and how
// fast on the same GPUs, each with its own best settings.
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
  planner::train::Request request;  // its method is the one that answers
  planner::train::Estimate estimate;
  planner::train::LongestSequence longest;
};

// In the order of kMethods, each longest with a step of at most `max_step_s`.
// The settings given are those of the method asked for; the others' are
// searched. A method that these GPUs are none for is left out; the method asked
// for is answered or a fault.
absl::StatusOr<std::vector<MethodAnswer>> AnswerEveryMethod(
    const planner::train::Request& asked,
    const planner::train::GivenSettings& given, double max_step_s);

std::string MethodsTable(const std::vector<MethodAnswer>& methods);
nlohmann::ordered_json MethodsJson(const std::vector<MethodAnswer>& methods);

}  // namespace sluice::ctl
