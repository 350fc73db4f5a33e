// The parts of a Llama layer and of the loss that work on each token alone,
// each in one pass over memory: an element is read once and written once,
// whatever is computed from it in between. (softmax reads a row twice: a row of
// logits is too long to be held.)
//
// Tensors are contiguous, row after row. Elements are fp32 or bf16; all of it
// is computed in fp32 and rounded once. An output may be the very memory of an
// input where that is said, and overlaps none otherwise.
//
// token_kernels.h launches the same on a GPU. Kernels take raw pointers; no
// torch header may be included here.
//
// Thread safety: pure functions of their arguments; one thread each. Rows, and
// parts of them, may be shared out among threads.
#pragma once

#include <cstdint>

#include "kernels/ops/element.h"

namespace sluice::ops {

// --- RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * weight ---------------------
struct RmsNormShape {
  int64_t rows = 0, width = 0;
  float epsilon = 0;
  // Backward's: the weight's gradient is summed over so many rows at a time.
  int64_t rows_in_part = 1;

  int64_t parts() const { return (rows + rows_in_part - 1) / rows_in_part; }
};
template <typename T>
struct RmsNormTensors {
  const T* x = nullptr;       // [rows, width]
  const T* weight = nullptr;  // [width]
  T* y = nullptr;             // [rows, width]
};
void Compute(const RmsNormShape& shape, const RmsNormTensors<float>& t);
void Compute(const RmsNormShape& shape, const RmsNormTensors<BFloat16>& t);

// Its backward. Statistics are computed again. The gradient of y is the sum of
// up to three tensors, which linear layers left; the second and third may be
// null.
inline constexpr int kMostGradients = 3;
template <typename T>
struct RmsNormGradients {
  const T* x = nullptr;
  const T* weight = nullptr;
  const T* dy[kMostGradients] = {};
  const T* residual = nullptr;       // added to dx; or null
  T* dx = nullptr;                   // may be x or residual
  float* weight_gradient = nullptr;  // [parts, width]: sums of dy * y / weight
};
void Compute(const RmsNormShape& shape, const RmsNormGradients<float>& t);
void Compute(const RmsNormShape& shape, const RmsNormGradients<BFloat16>& t);

// --- RoPE: pairs (i, i + dim / 2) of a head are turned -----------------------
struct RopeShape {
  int64_t rows = 0, heads = 0, dim = 0;
  bool inverse = false;  // turns back, which is the gradient
};
template <typename In, typename Out>
struct RopeTensors {
  const In* x = nullptr;       // [rows, heads, dim]
  const float* cos = nullptr;  // [rows, dim / 2]
  const float* sin = nullptr;
  Out* y = nullptr;  // as x, which may be the same
};
void Compute(const RopeShape& shape, const RopeTensors<float, float>& t);
void Compute(const RopeShape& shape, const RopeTensors<BFloat16, BFloat16>& t);
void Compute(const RopeShape& shape, const RopeTensors<float, BFloat16>& t);

// --- SwiGLU: y = silu(gate) * up ---------------------------------------------
struct SwigluShape {
  int64_t elements = 0;
};
template <typename T>
struct SwigluTensors {
  const T* gate = nullptr;
  const T* up = nullptr;
  T* y = nullptr;
};
void Compute(const SwigluShape& shape, const SwigluTensors<float>& t);
void Compute(const SwigluShape& shape, const SwigluTensors<BFloat16>& t);

template <typename T>
struct SwigluGradients {
  const T* dy = nullptr;
  const T* gate = nullptr;
  const T* up = nullptr;
  T* d_gate = nullptr;
  T* d_up = nullptr;  // may be dy
};
void Compute(const SwigluShape& shape, const SwigluGradients<float>& t);
void Compute(const SwigluShape& shape, const SwigluGradients<BFloat16>& t);

// --- cross entropy, and its gradient in the place of the logits --------------
struct SoftmaxShape {
  int64_t rows = 0, width = 0;
  int64_t ignored = 0;  // a row with this label has neither loss nor gradient
  float scale = 0;      // gradients are of loss * scale
};
template <typename T>
struct SoftmaxTensors {
  T* logits = nullptr;  // [rows, width]; becomes (softmax - one at the label) *
                        // scale
  const int64_t* labels = nullptr;  // [rows]
  float* loss = nullptr;            // [rows]
};
void Compute(const SoftmaxShape& shape, const SoftmaxTensors<float>& t);
void Compute(const SoftmaxShape& shape, const SoftmaxTensors<BFloat16>& t);

}  // namespace sluice::ops
