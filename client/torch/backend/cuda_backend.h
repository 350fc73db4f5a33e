// A GPU's attention by one of torch's kernels
// (planner/stream/attention_kernel.h), merged by our kernel on torch's current
// stream. bf16 and fp32.
//
// A block's gradients take the merged output rounded to the model's dtype,
// which is all that these kernels take.
//
// Tested on the fakes (tests/fake_cuda); an H100 has run it
// (deploy/bundle/measured).
//
// Thread safety: as Backend's; Open and the end by the thread that computes.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/backend/backend.h"
#include "kernels/device/driver.h"
#include "planner/stream/attention_kernel.h"

namespace sluice::runtime {

// Loads torch's CUDA part (LoadTorchCuda) and our kernels, and installs the
// GPU's backend until the result is destroyed. If torch's current stream of the
// calling thread is CUDA's default one, which waits for all others, the
// driver's compute stream replaces it for that time. The calling thread is on
// that GPU from then on. `driver` outlives the result. Backend::Check refuses
// what `asked` cannot compute.
// Unavailable: as LoadTorchCuda. Unimplemented: a build without CUDA.
absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(
    device::Driver* driver, c10::Device gpu,
    stream::AttentionKernel asked = stream::AttentionKernel::kAuto);

}  // namespace sluice::runtime
