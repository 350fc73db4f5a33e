// Interface of the cost model: the best settings, the longest sequence.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "planner/train/estimate.h"
#include "planner/train/settings.h"

namespace sluice::planner::train {

// Returns the fastest settings that fit, of those that `given` allows, on all
// GPUs or on some (settings.gpus()); if none fits, those that exceed memory by
// the least. `reason` is kHeads if the heads allow no division. ZeRO's stage
// and the engine are searched too. MFU and tokens per GPU count idle GPUs too.
absl::StatusOr<Estimate> BestEstimate(const Request& request,
                                      const GivenSettings& given);

struct LongestSequence {
  int64_t tokens = 0;  // a multiple of kLengthStep; 0: not even one step fits
  Reason stopped_by = Reason::kOk;  // kOk: the search ended at kLongest
  Estimate at;  // the estimate at `tokens`, or at kLengthStep if that is 0
};
inline constexpr int64_t kLengthStep = 64 << 10;
inline constexpr int64_t kLongest = int64_t{256} << 20;

// Returns the longest sequence that fits with any settings that `given` allows
// and has a step of at most `max_step_s` (kStep: the next length's step is
// longer).
absl::StatusOr<LongestSequence> FindLongest(
    Request request, const GivenSettings& given,
    double max_step_s = std::numeric_limits<double>::infinity());

}  // namespace sluice::planner::train
