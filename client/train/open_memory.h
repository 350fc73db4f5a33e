// Opens a rank's session and memory, by the command line.
// Thread safety: one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"

namespace sluice::train {

// Opens this rank's session and memory on the GPU that it chooses
// (gpu_choice.h). --hbm limits its lease there; without --hbm, the ranks of
// this job on that GPU share what other jobs leave. --host limits all local
// ranks together, each by its share. Leases nothing yet. InvalidArgument,
// NotFound: mistakes that the user can fix.
absl::StatusOr<std::unique_ptr<runtime::RankMemory>> OpenMemory(
    const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
