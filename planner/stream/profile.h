// The planner's profile of a streamed step.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Returns skeletal classes with bytes and recompute times, fixed traffic, host
// bytes and windows. `recorded` holds the segment kinds of a calibration run
// with the same chunk size and ranks; executions are filled in for
// `options.layout`. The caller sets job, rank, gpu, numa, transient_capacity
// and what the user requests.
plan::RankProfile Profile(const StreamOptions& options,
                          const std::vector<plan::SegmentKind>& recorded);

}  // namespace sluice::stream
