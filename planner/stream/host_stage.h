// What a rank on a GPU holds of host memory beside its step's.
//
// The CPU touches no tensor of a GPU: ids, first weights and files go through a
// stage of pinned memory (client/torch/run/host_stage.h). Where tensors are the
// host's, as on a simulated GPU, there is none. A plan's host bytes have it,
// and so has the desk's answer, for both say what a run takes of a node.
// Plain data; thread safety: values.
#pragma once

#include "proto/base/units.h"

namespace sluice::stream {

inline constexpr Bytes kHostStageBytes = MiB(4);

}  // namespace sluice::stream
