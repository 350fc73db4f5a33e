// Random numbers of a fake GPU. They depend on the seed and the offset of
// torch's CUDA generator, as Philox's do, but differ from a GPU's.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace sluice::fake_cuda {

// Returns a CPU generator for one launch that starts at the GPU generator's
// state, and advances the GPU's generator. Without `given` it uses the GPU's
// default one.
at::Generator Drawn(at::Device device, std::optional<at::Generator> given);

}  // namespace sluice::fake_cuda
