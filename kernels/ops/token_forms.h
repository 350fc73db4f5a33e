// Declares the functions of token_math.h once more for each instruction set
// that they are compiled for (internal to kernels/ops).
#pragma once

#include "kernels/ops/token_math.h"

// Expands F(shape, tensors) for each function.
#define SLUICE_TOKEN_FORMS(F)                   \
  F(RmsNormShape, RmsNormTensors<float>)        \
  F(RmsNormShape, RmsNormTensors<BFloat16>)     \
  F(RmsNormShape, RmsNormGradients<float>)      \
  F(RmsNormShape, RmsNormGradients<BFloat16>)   \
  F(RopeShape, RopeTensors<float, float>)       \
  F(RopeShape, RopeTensors<BFloat16, BFloat16>) \
  F(RopeShape, RopeTensors<float, BFloat16>)    \
  F(SwigluShape, SwigluTensors<float>)          \
  F(SwigluShape, SwigluTensors<BFloat16>)       \
  F(SwigluShape, SwigluGradients<float>)        \
  F(SwigluShape, SwigluGradients<BFloat16>)     \
  F(SoftmaxShape, SoftmaxTensors<float>)        \
  F(SoftmaxShape, SoftmaxTensors<BFloat16>)

namespace sluice::ops {

#define SLUICE_DECLARE(Shape, ...) \
  void Compute(const Shape& shape, const __VA_ARGS__& t);
namespace baseline {
SLUICE_TOKEN_FORMS(SLUICE_DECLARE)
}
namespace avx2 {
SLUICE_TOKEN_FORMS(SLUICE_DECLARE)
}
namespace avx512 {
SLUICE_TOKEN_FORMS(SLUICE_DECLARE)
}
#undef SLUICE_DECLARE

}  // namespace sluice::ops
