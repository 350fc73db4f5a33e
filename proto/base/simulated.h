// What the name of a device driver (Welcome.driver) means to clients and
// policy, which know nothing else of the driver.
#pragma once

#include <string_view>

namespace sluice {

// Returns whether GPU memory is host memory in files. Then tensors in it are on
// the CPU, no CUDA context or library takes a part of it, and it is free as
// soon as its holder ends. An unknown name counts as a real GPU.
constexpr bool IsSimulated(std::string_view driver) { return driver == "sim"; }

}  // namespace sluice
