// The host memory that a rank on a GPU needs in addition to its step's.
//
// The CPU does not read GPU tensors: ids, initial weights and files are copied
// through a stage of pinned memory (client/torch/run/host_stage.h). A simulated
// GPU's tensors lie in host memory, so it needs no stage. A plan's host bytes
// and the desk's answer include the stage, because both state what a run takes
// of a node. Thread safety: values.
#pragma once

#include "proto/base/units.h"

namespace sluice::stream {

inline constexpr Bytes kHostStageBytes = MiB(4);

}  // namespace sluice::stream
