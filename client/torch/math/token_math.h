// The token-local parts of a layer, forward and backward, written by hand so
// that only what the plan chose is saved.
//
// Tensors are [rows, width], contiguous; rows may be 0. A result is written to
// `out` (contiguous), or to a new tensor if `out` is undefined. Weight
// gradients are fp32, and the functions add to them. Sums over rows are taken
// in fp32 for every dtype.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/backend/backend.h"
#include "client/torch/math/model_tensors.h"
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
// Adds dY^T X and sum(dY) for layers that have the same input.
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

// --- RoPE -------------------------------------------------------------------
// Rotate-half as in Llama: pairs (i, i + dim/2) of a head rotate by position *
// theta^(-2i/dim). Angles are computed in fp64: an fp32 angle of a position in
// the millions is wrong in its second decimal.
struct RopeTables {
  at::Tensor cos, sin;  // [rows, 1, dim / 2], fp32
};

// Returns the tables of positions [begin, begin + rows).
RopeTables MakeRopeTables(int64_t begin, int64_t rows, int64_t dim,
                          double theta, at::Device device);

// Rotates x [rows, heads, dim], contiguous, in fp32; `inverse` rotates back,
// which is also the gradient. The result has dtype `type`. If x has that dtype,
// the result is in place; else x is fp32 and the result is a new tensor.
at::Tensor ApplyRope(const at::Tensor& x, const RopeTables& tables,
                     bool inverse, at::ScalarType type);

// --- loss -------------------------------------------------------------------
// Cross entropy over a few rows of logits at a time, because all logits would
// be rows * vocabulary numbers. The gradient overwrites the logits, labels of
// -100 are ignored, losses are summed in fp64.
inline constexpr int64_t kIgnoredLabel = -100;

// Turns logits [rows, vocab] into the gradient of each row's loss * scale, and
// adds the losses to `loss_sum` (fp64 scalar tensor).
void LogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                   double scale, at::Tensor& loss_sum);

// Adds the losses of `normed` [rows, hidden] against `labels` to `loss_sum`
// (fp64 scalar tensor, no host wait), and the gradient of loss * scale to
// `weight_gradient` (fp32 [vocab, hidden]). Returns d(normed), in its dtype.
at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient);

// Copies a step's result to the host, which waits for the device once.
// `loss_sum` is an fp64 scalar.
StepResult ReadResult(const at::Tensor& loss_sum, const at::Tensor& labels);

}  // namespace sluice::runtime
