// Formats a cost model's estimate for people. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/train/search.h"

namespace sluice::ctl {

// The answer of one method to a request.
struct MethodAnswer {
  planner::train::Request request;  // the request with this answer's method
  planner::train::Estimate estimate;
  planner::train::LongestSequence longest;
};

// A method's MFU with its best settings, at growing lengths.
struct MfuCurve {
  planner::train::Method method = {};
  bool validated = false;  // a published table has its speed on this machine
  std::vector<std::pair<int64_t, double>> points;  // tokens, MFU as a fraction
};

// The answer of `sluicectl plan train`.
struct TrainAnswer {
  planner::train::Request request;
  planner::train::Estimate estimate;
  std::optional<planner::train::LongestSequence> longest;
  // Changes that would make it fit, the smallest first. Empty if it fits.
  std::vector<planner::train::Remedy> remedies;
  planner::train::IdleGpus idle;
  std::string batch_source;  // the flags that state the sequences per step
  // With --compare and --html: the answers of all methods, including the
  // requested one.
  std::vector<MethodAnswer> methods;
  std::vector<MfuCurve> curves;
};

std::string TrainWords(const TrainAnswer& answer);
// The line of --json: speeds are null if the request does not fit.
std::string TrainJson(const TrainAnswer& answer);
// The page of --html: one file without network access.
std::string TrainPage(const TrainAnswer& answer);

// The text of train_page.html, with @DATA@ where the JSON belongs.
extern const char* const kTrainPage;

}  // namespace sluice::ctl
