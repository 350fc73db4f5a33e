// The CPU's attention: ATen's flash attention, merged by kernels/ops.
#pragma once

#include "client/torch/backend/backend.h"

namespace sluice::runtime {

const Backend& CpuBackend();

}  // namespace sluice::runtime
