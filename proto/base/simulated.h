// What a device driver's name (Welcome.driver) means to clients and to policy,
// which know the node's driver by its name alone.
#pragma once

#include <string_view>

namespace sluice {

// Whether GPU memory is host memory in files: tensors in it are on the CPU, no
// CUDA context or library takes a part of it, and it is free as soon as its
// holder ends. An unknown name is taken for a real GPU's.
constexpr bool IsSimulated(std::string_view driver) { return driver == "sim"; }

}  // namespace sluice
