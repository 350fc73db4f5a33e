// A GPU's backend, on torch's current stream: attention by one of torch's
// kernels (planner/stream/attention_kernel.h), its merge and token-local math
// by Sluice's. Supports bf16 and fp32. Backward gets the merged output in the
// model's dtype, because torch's kernels take no wider one.
//
// Thread safety: as Backend's. The compute thread opens and destroys it.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/backend/backend.h"
#include "kernels/device/driver.h"
#include "planner/stream/attention_kernel.h"

namespace sluice::runtime {

// Loads torch's CUDA part (LoadTorchCuda) and Sluice's kernels, and installs
// the GPU's backend until the result is destroyed. If torch's current stream of
// the calling thread is CUDA's default one, which waits for all others, the
// driver's compute stream replaces it while the result lives. The GPU becomes
// the calling thread's current GPU, and stays so. `driver` outlives the result.
// Backend::Check refuses what kernel `asked` cannot compute. Unavailable: as
// LoadTorchCuda. Unimplemented: a build without CUDA.
absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(
    device::Driver* driver, c10::Device gpu,
    stream::AttentionKernel asked = stream::AttentionKernel::kAuto);

}  // namespace sluice::runtime
