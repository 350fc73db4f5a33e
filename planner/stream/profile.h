// What the planner is told of a streamed step.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Skeletal classes with bytes and recompute times, fixed traffic, host bytes,
// windows. `recorded` are the segment kinds of a calibration run with the same
// chunk size and ranks; executions are filled in for `options.layout`. job,
// rank, gpu, numa, transient_capacity and what is asked for are the caller's.
plan::RankProfile Profile(const StreamOptions& options,
                          const std::vector<plan::SegmentKind>& recorded);

}  // namespace sluice::stream
