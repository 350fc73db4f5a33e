#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Returns the planner's profile of a streamed step: skeletal classes (bytes and
// recompute times), fixed traffic, host bytes and windows. `recorded`: the
// segment kinds of a calibration run with the same chunk size and ranks; their
// executions are set for `options.layout`. The caller sets job, rank, gpu,
// numa, transient_capacity and what the user requests.
plan::RankProfile Profile(const StreamOptions& options,
                          const std::vector<plan::SegmentKind>& recorded);

}  // namespace sluice::stream
