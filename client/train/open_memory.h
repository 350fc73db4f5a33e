// Opens a rank's session and memory. Thread safety: one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"

namespace sluice::train {

// Opens them on the GPU that gpu_choice.h chooses; leases nothing yet. --host
// limits all local ranks together, each by its share. InvalidArgument,
// NotFound: mistakes that the user can fix.
absl::StatusOr<std::unique_ptr<runtime::RankMemory>> OpenMemory(
    const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
