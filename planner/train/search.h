// Searches the best settings of a request, and the longest sequence.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "planner/train/estimate.h"
#include "planner/train/settings.h"

namespace sluice::planner::train {

// Returns the estimate of the fastest settings that fit, among all that `given`
// allows, on all or some of the GPUs (settings.gpus()). If none fits, returns
// that of the settings that exceed memory by the least. `reason` is kHeads if
// no division of the heads exists. MFU and tokens per GPU count idle GPUs of
// the request too.
absl::StatusOr<Estimate> BestEstimate(const Request& request,
                                      const GivenSettings& given);

struct LongestSequence {
  int64_t tokens = 0;               // a multiple of kLengthStep; 0: none fits
  Reason stopped_by = Reason::kOk;  // kOk: everything up to kLongest fits
  Estimate at;  // the estimate at `tokens`, or at kLengthStep if that is 0
};
inline constexpr int64_t kLengthStep = 64 << 10;
inline constexpr int64_t kLongest = int64_t{256} << 20;

// Returns the longest sequence that fits with any settings that `given` allows
// and has a step of at most `max_step_s`. `stopped_by` is kStep if the next
// length's step takes longer.
absl::StatusOr<LongestSequence> FindLongest(
    Request request, const GivenSettings& given,
    double max_step_s = std::numeric_limits<double>::infinity());

}  // namespace sluice::planner::train
