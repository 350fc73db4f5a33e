// The front of the cost model: the best settings, the longest sequence.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "planner/train/estimate.h"
#include "planner/train/settings.h"

namespace sluice::planner::train {

// The fastest settings that fit, of those `given` allows, on all of the GPUs or
// on some (settings.gpus()); where none fits, the ones that miss by the least.
// `reason` is kHeads where the heads allow none. ZeRO's stage and the engine
// are searched as well. MFU and tokens per GPU count idle GPUs too.
absl::StatusOr<Estimate> BestEstimate(const Request& request,
                                      const GivenSettings& given);

struct LongestSequence {
  int64_t tokens = 0;  // a multiple of kLengthStep; 0: not even one
  Reason stopped_by = Reason::kOk;  // kOk: the search ends at kLongest
  Estimate at;                      // at `tokens`, or at kLengthStep when 0
};
inline constexpr int64_t kLengthStep = 64 << 10;
inline constexpr int64_t kLongest = int64_t{256} << 20;

// The longest sequence that fits with any settings `given` allows, with a step
// of at most `max_step_s` (kStep: the next one's is longer).
absl::StatusOr<LongestSequence> FindLongest(
    Request request, const GivenSettings& given,
    double max_step_s = std::numeric_limits<double>::infinity());

}  // namespace sluice::planner::train
