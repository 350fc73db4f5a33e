// A rank's session and memory, by the command line.
// Thread safety: one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/launcher.h"
#include "client/train/launch/options.h"

namespace sluice::train {

// On this rank's GPU (gpu_choice.h), to lease there --hbm, else what other jobs
// leave, shared with the ranks of this job there; --host binds all local ranks
// together, so each has its share. Nothing is leased yet. InvalidArgument,
// NotFound: what the user can fix.
absl::StatusOr<std::unique_ptr<runtime::RankMemory>> OpenMemory(
    const RunOptions& options, const RankEnvironment& environment);

}  // namespace sluice::train
