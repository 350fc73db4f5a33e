// The token-local parts of a layer, forward and backward, written by hand so
// that only what the plan chose is saved.
//
// Tensors are [rows, width], contiguous; rows may be 0. A result is written to
// `out` (contiguous), or to a new tensor if `out` is undefined. Weight
// gradients are fp32, and the functions add to them. Sums over rows are taken
// in fp32 for every dtype.
//
// RMSNorm and SwiGLU use kernels/ops, which reads and writes each element once.
// LayerNorm and GELU use ATen.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/backend/backend.h"
#include "planner/stream/model_shape.h"

namespace sluice::runtime {

// --- norms ---------------------------
struct NormWeights {
  stream::NormKind kind;
  const at::Tensor& weight;
  const at::Tensor& bias;  // undefined for RMSNorm
  double epsilon;
};

at::Tensor NormForward(const at::Tensor& x, const NormWeights& norm,
                       at::Tensor out = {});

// The fp32 gradients of the norm's weights, to which NormBackward adds.
struct NormGradients {
  at::Tensor& weight;
  at::Tensor& bias;
};
// Writes dX to `dx` and adds to `gradients`. Reads x (computing the statistics
// again is cheaper than keeping them) and up to three parts of dY, which are
// summed in fp32. Adds `residual` to dX if it is defined. dx may be x's or
// residual's memory.
void NormBackward(const at::Tensor& x, at::TensorList dy,
                  const at::Tensor& residual, const NormWeights& norm,
                  const NormGradients& gradients, const at::Tensor& dx);

// --- linears: weight [out, in], bias may be undefined -----------------------
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, at::Tensor out = {});
// Adds dY^T X to the weight gradients, and sum(dY) to the bias gradients, of
// layers that have the same input.
void LinearBackwardWeight(const at::Tensor& x,
                          std::initializer_list<LinearGradients> layers);
// Returns dX; all tensors have one dtype.
at::Tensor LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight,
                               at::Tensor out = {});

// --- activations: SwiGLU silu(gate) * up, or GELU (tanh) of up --------------
// `gate` is undefined for GELU.
at::Tensor ActivationForward(const at::Tensor& gate, const at::Tensor& up,
                             at::Tensor out = {});
struct ActivationGradients {
  at::Tensor gate, up;
};
// Returns the gradients of `gate` and `up`. For SwiGLU, up's gradient
// overwrites `gradient`.
ActivationGradients ActivationBackward(const at::Tensor& gradient,
                                       const at::Tensor& gate,
                                       const at::Tensor& up);

}  // namespace sluice::runtime
