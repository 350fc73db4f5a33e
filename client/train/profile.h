// `sluice-train profile`: measures what the cost model needs to know of a
// machine (planner/train's hardware profile) and writes it as TOML.
//
// All ranks measure at once, so links are measured as in a step. A GPU's
// kernels are timed by the stream's clock in bf16, those of a simulated node by
// the host's in fp32.
// Thread safety: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/options.h"

namespace sluice::train {

// Measures and writes the profile to `toml`, equal on all ranks. All ranks call
// it (`collectives` is null for one).
absl::Status MeasureMachine(const RunOptions& options,
                            runtime::RankMemory& memory,
                            runtime::Collectives* collectives,
                            std::string* toml);

}  // namespace sluice::train
