// Random numbers of a fake GPU: by the seed and the offset of torch's CUDA
// generator, as Philox has them, but other numbers than a GPU's.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace sluice::fake_cuda {

// For one launch: a generator of the CPU that starts where the GPU's is, which
// moves on as it is issued. Without a generator it is the GPU's default one.
at::Generator Drawn(at::Device device, std::optional<at::Generator> given);

}  // namespace sluice::fake_cuda
