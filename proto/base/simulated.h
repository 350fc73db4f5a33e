#pragma once

#include <string_view>

namespace sluice {

// Returns whether the GPU memory of the driver (Welcome.driver) is host memory
// in files. Tensors in it are then on the CPU, no CUDA context or library takes
// a part of it, and it is free as soon as its holder ends. An unknown name
// counts as a real GPU.
constexpr bool IsSimulated(std::string_view driver) { return driver == "sim"; }

}  // namespace sluice
