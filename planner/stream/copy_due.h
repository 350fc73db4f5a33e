// Computes the deadlines of a streamed step's copies. By the rings
// (client/torch/stream/chunk_io.h), a copy may start when the slot before its
// own is free, and compute needs it after it has used the other slots. So the
// slack of a kind of copies is the compute of all slots but one, and the
// shortest such time if copies of a kind differ.
#pragma once

#include <vector>

#include "planner/stream/options.h"
#include "proto/plan/profile.h"

namespace sluice::stream {

struct CopyDue {
  const char* label;  // the label of the copies
  double slack_seconds = 0;
};

// Returns the slack of every kind of copies. `recorded`: the plan's segments
// with their times; a segment that was not recorded takes no time.
std::vector<CopyDue> CopiesDue(const StreamOptions& options,
                               const std::vector<plan::SegmentKind>& recorded);

}  // namespace sluice::stream
