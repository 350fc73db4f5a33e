// The parts of a layer that work on each token alone, forward and backward,
// written out by hand so that nothing is saved that the plan did not choose.
//
// Tensors are [rows, width], contiguous, rows may be 0. `out` is where a result
// is to be, contiguous; undefined: in a new tensor. Weight gradients are fp32
// and are added to; sums over rows are taken in fp32 whatever the dtype.
//
// RMSNorm and SwiGLU are kernels/ops' (an element is read and written once),
// LayerNorm and GELU ATen's.
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

// Its gradients: of the weights, fp32, added to.
struct NormGradients {
  at::Tensor& weight;
  at::Tensor& bias;
};
// dX, written to `dx`, from x (statistics are computed again: cheaper than
// keeping them would be) and up to three parts of dY, which are summed in fp32.
// `residual` is added; undefined: nothing is. dx may be x's or residual's
// memory.
void NormBackward(const at::Tensor& x, at::TensorList dy,
                  const at::Tensor& residual, const NormWeights& norm,
                  const NormGradients& gradients, const at::Tensor& dx);

// --- linears: weight [out, in], bias may be undefined -----------------------
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, at::Tensor out = {});
// Adds dY^T X and sum(dY), of layers that have the same input.
void LinearBackwardWeight(const at::Tensor& x,
                          std::initializer_list<LinearGradients> layers);
// dX; all are of one dtype.
at::Tensor LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight,
                               at::Tensor out = {});

// --- activations: SwiGLU silu(gate) * up, or GELU (tanh) of up --------------
// `gate` is undefined for GELU.
at::Tensor ActivationForward(const at::Tensor& gate, const at::Tensor& up,
                             at::Tensor out = {});
struct ActivationGradients {
  at::Tensor gate, up;
};
// That of up comes in the place of `gradient` for SwiGLU.
ActivationGradients ActivationBackward(const at::Tensor& gradient,
                                       const at::Tensor& gate,
                                       const at::Tensor& up);

}  // namespace sluice::runtime
