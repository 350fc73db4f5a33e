// The operations of a Llama layer and of the loss that treat each token
// independently, in one pass over memory: a row that is read twice stays in
// cache or registers, except softmax's row of logits, which is too long.
//
// Tensors are contiguous, row after row. Elements are fp32 or bf16; everything
// is computed in fp32 and rounded once. An output may be the same memory as an
// input if a comment says so, and must not overlap any input otherwise.
//
// gpu_kernels.h launches the same operations on a GPU. Kernels take raw
// pointers; no torch header may be included here.
//
// Thread safety: pure functions; each call uses one thread. Callers may divide
// rows, or parts of them, among threads.
#pragma once

#include <cstdint>

#include "kernels/ops/element.h"

namespace sluice::ops {

// --- RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * weight ---------------------
struct RmsNormShape {
  int64_t rows = 0, width = 0;
  float epsilon = 0;
  // Rows in a part. The backward sums the weight's gradient over each part.
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

// On a GPU, a block of a norm kernel holds one row in registers: each thread
// holds at most kHeldPieces pieces of 16 bytes.
inline constexpr int kHeldPieces = 4;
inline constexpr int kMostNormThreads = 512;

// The backward computes the row statistics again. The gradient of y is the sum
// of up to three tensors (of linear layers); the last two may be null.
inline constexpr int kMostGradients = 3;
template <typename T>
struct RmsNormGradients {
  const T* x = nullptr;
  const T* weight = nullptr;
  const T* dy[kMostGradients] = {};
  const T* residual = nullptr;       // added to dx; may be null
  T* dx = nullptr;                   // may be x or residual
  float* weight_gradient = nullptr;  // [parts, width]: sums of dy * y / weight
};
void Compute(const RmsNormShape& shape, const RmsNormGradients<float>& t);
void Compute(const RmsNormShape& shape, const RmsNormGradients<BFloat16>& t);

// --- RoPE: rotates the pairs (i, i + dim / 2) of a head ----------------------
struct RopeShape {
  int64_t rows = 0, heads = 0, dim = 0;
  bool inverse = false;  // rotates backwards, which gives the gradient
};
template <typename In, typename Out>
struct RopeTensors {
  const In* x = nullptr;       // [rows, heads, dim]
  const float* cos = nullptr;  // [rows, dim / 2]
  const float* sin = nullptr;
  Out* y = nullptr;  // [rows, heads, dim]; may be x
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

// --- cross entropy; its gradient replaces the logits -------------------------
struct SoftmaxShape {
  int64_t rows = 0, width = 0;
  int64_t ignored = 0;  // rows with this label have loss and gradient 0
  float scale = 0;      // factor of the gradient, but not of `loss`
};
template <typename T>
struct SoftmaxTensors {
  // [rows, width]; replaced by (softmax - one_hot(label)) * scale.
  T* logits = nullptr;
  const int64_t* labels = nullptr;  // [rows]
  float* loss = nullptr;            // [rows]
};
void Compute(const SoftmaxShape& shape, const SoftmaxTensors<float>& t);
void Compute(const SoftmaxShape& shape, const SoftmaxTensors<BFloat16>& t);

}  // namespace sluice::ops
