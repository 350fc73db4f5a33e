// Deadlines of a streamed step's copies.
//
// They follow from the rings (client/torch/stream/chunk_io.h): a copy may start
// when the slot before it is free, and compute reaches it after it has used the
// other slots. So the slack of each kind of copy is the compute of all slots
// but one. If copies of a kind differ, it is the shortest.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

struct CopyDue {
  const char* label;  // the label of the copies
  double slack_seconds = 0;
};

// Returns each label of a step's copies once. `recorded`: the plan's segments
// with their times; a segment that was not recorded takes no time.
std::vector<CopyDue> CopiesDue(const StreamOptions& options,
                               const std::vector<plan::SegmentKind>& recorded);

}  // namespace sluice::stream
