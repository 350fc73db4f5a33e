// Random numbers of a fake GPU. They depend on the seed and the offset of
// torch's CUDA generator, as Philox's do, but differ from a GPU's.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace sluice::fake_cuda {

// Returns a CPU generator for one launch, seeded from the state of `given` or,
// if that is unset, of the GPU's default generator. Advances that generator.
at::Generator Drawn(at::Device device, std::optional<at::Generator> given);

}  // namespace sluice::fake_cuda
