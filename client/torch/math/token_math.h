// The parts of a layer that work on each token alone, forward and backward,
// written out by hand so that nothing is saved that the plan did not choose.
//
// Tensors are [rows, width], rows may be 0. Weight gradients are fp32 and are
// added to; sums over rows are taken in fp32 whatever the dtype.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "planner/stream/model_shape.h"

namespace sluice::runtime {

// --- norms ---------------------------
struct NormWeights {
  stream::NormKind kind;
  const at::Tensor& weight;
  const at::Tensor& bias;  // undefined for RMSNorm
  double epsilon;
};

at::Tensor NormForward(const at::Tensor& x, const NormWeights& norm);
// dX in fp32, from x (statistics are computed again: one cheap pass, cheaper
// than keeping them would be) and dY of any float type.
at::Tensor NormBackward(const at::Tensor& x, const at::Tensor& dy,
                        const NormWeights& norm, at::Tensor& weight_gradient,
                        at::Tensor& bias_gradient);

// --- linears: weight [out, in], bias may be undefined -----------------------
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias);
// Adds dY^T X and sum(dY).
void LinearBackwardWeight(const at::Tensor& x, const at::Tensor& dy,
                          at::Tensor& weight_gradient,
                          at::Tensor& bias_gradient);
// dX in the weight's dtype.
at::Tensor LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight);

// --- activations: SwiGLU silu(gate) * up, or GELU (tanh) of up --------------
// `gate` is undefined for GELU.
at::Tensor ActivationForward(const at::Tensor& gate, const at::Tensor& up);
struct ActivationGradients {
  at::Tensor gate, up;
};
ActivationGradients ActivationBackward(const at::Tensor& gradient,
                                       const at::Tensor& gate,
                                       const at::Tensor& up);

}  // namespace sluice::runtime
