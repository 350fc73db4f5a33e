#pragma once

#include <string_view>

namespace sluice {

// Returns whether `driver` (Welcome.driver) simulates GPU memory by host memory
// in files. Tensors in such memory are CPU tensors, no CUDA context or library
// takes a part of it, and it is free as soon as its process ends. An unknown
// name counts as a real GPU.
constexpr bool IsSimulated(std::string_view driver) { return driver == "sim"; }

}  // namespace sluice
