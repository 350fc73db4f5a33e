// Host memory of a rank on a GPU in addition to its step's.
//
// The CPU reads no GPU tensor: ids, initial weights and files go through a
// stage of pinned memory (client/torch/run/host_stage.h). A simulated GPU's
// tensors lie in host memory, so it needs no stage. A plan's host bytes and the
// desk's answer both include the stage, because both state what a run takes of
// a node. Plain data; thread safety: values.
#pragma once

#include "proto/base/units.h"

namespace sluice::stream {

inline constexpr Bytes kHostStageBytes = MiB(4);

}  // namespace sluice::stream
