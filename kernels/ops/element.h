// The element type bf16 of a model's tensors, for CPU and GPU kernels.
#pragma once

#include <cstdint>

namespace sluice::ops {

// bfloat16 bits; c10::BFloat16 and __nv_bfloat16 have the same layout.
struct BFloat16 {
  uint16_t bits;
};

}  // namespace sluice::ops
