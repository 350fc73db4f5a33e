// Predicts how long a streamed step takes, from the measured time of each
// segment and the links' speeds (layer_time.h).
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/stream/layer_time.h"
#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

// Returns the seconds of a step of one sequence. `recorded`: the segments of a
// step that dropped nothing, with the same chunk size and any number of layers
// and chunks. Recomputing a dropped class costs its share of the segment that
// makes it.
double StepSeconds(const StreamOptions& options,
                   const std::vector<plan::SegmentKind>& recorded,
                   const LinkSpeeds& links);

}  // namespace sluice::stream
