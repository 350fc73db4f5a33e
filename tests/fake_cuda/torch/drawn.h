// Random numbers of a fake GPU. They depend on the seed and the offset of
// torch's CUDA generator, as Philox's do, but differ from a GPU's.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace sluice::fake_cuda {

// Returns a CPU generator for one launch, seeded by the state of the GPU's
// generator, and advances that one. Without `given` the GPU's generator is the
// default one.
at::Generator Drawn(at::Device device, std::optional<at::Generator> given);

}  // namespace sluice::fake_cuda
