// The timeline of one step, for the demo's report: compute, copies, and the
// live blocks of HBM. RecordTimeline of the memory's allocator begins it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/run/rank_memory.h"

namespace sluice::train {

// Ends the timeline and returns it as JSON, with times in seconds of the
// monotonic clock.
std::string EndTrace(runtime::RankMemory& memory,
                     const std::vector<client::CopyRecord>& copies);
absl::Status WriteTrace(const std::string& path, const std::string& text);
// InvalidArgument: no file can be written there. Leaves nothing behind.
absl::Status CheckTracePath(const std::string& path);

}  // namespace sluice::train
