// An element of a model's tensors, as kernels of the CPU and of a GPU read it.
#pragma once

#include <cstdint>

namespace sluice::ops {

// bfloat16 bits; c10::BFloat16 and __nv_bfloat16 have the same layout.
struct BFloat16 {
  uint16_t bits;
};

}  // namespace sluice::ops
