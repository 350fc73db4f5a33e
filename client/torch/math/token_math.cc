#include "client/torch/math/token_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "client/torch/math/token_calls.h"
#include "client/torch/placement.h"

namespace sluice::runtime {
namespace {

at::Tensor Float(const at::Tensor& t) { return t.to(at::kFloat); }

// A norm's weight gradient is summed in two passes: first over each part of the
// rows, by one block of a GPU's threads, then over the parts. There are enough
// parts to fill a GPU. Each part has enough rows that writing its sum costs
// little compared with reading the rows.
constexpr int64_t kMostParts = 512;
constexpr int64_t kLeastRowsInPart = 16;

ops::RmsNormShape ShapeOf(const at::Tensor& x, double epsilon) {
  const int64_t rows = x.size(0);
  return {.rows = rows,
          .width = x.size(1),
          .epsilon = static_cast<float>(epsilon),
          .rows_in_part =
              std::max(kLeastRowsInPart, (rows + kMostParts - 1) / kMostParts)};
}

void RmsNormForward(const at::Tensor& x, const NormWeights& norm,
                    const at::Tensor& y) {
  const ObservedCall observed("sluice::rms_norm", {x, norm.weight}, {y});
  ForElement(x.scalar_type(), [&]<typename T>() {
    BackendOf(x).Compute(RmsNormCall<T>{ShapeOf(x, norm.epsilon),
                                        {.x = Elements<T>(x),
                                         .weight = Elements<T>(norm.weight),
                                         .y = Elements<T>(y)}});
  });
}

void RmsNormBackward(const at::Tensor& x, at::TensorList dy,
                     const at::Tensor& residual, const NormWeights& norm,
                     at::Tensor& gradient, const at::Tensor& dx) {
  const ops::RmsNormShape shape = ShapeOf(x, norm.epsilon);
  const at::Tensor sums =
      at::empty({shape.parts(), shape.width}, gradient.options());
  {
    std::vector<at::Tensor> reads = {x, norm.weight, residual};
    reads.insert(reads.end(), dy.begin(), dy.end());
    const ObservedCall observed("sluice::rms_norm_backward", reads, {dx, sums});
    ForElement(x.scalar_type(), [&]<typename T>() {
      ops::RmsNormGradients<T> t = {.x = Elements<T>(x),
                                    .weight = Elements<T>(norm.weight),
                                    .residual = Elements<T>(residual),
                                    .dx = Elements<T>(dx),
                                    .weight_gradient = Elements<float>(sums)};
      SLUICE_CHECK(dy.size() <= ops::kMostGradients);
      for (size_t i = 0; i < dy.size(); ++i) t.dy[i] = Elements<T>(dy[i]);
      BackendOf(x).Compute(RmsNormBackwardCall<T>{shape, t});
    });
  }
  gradient.add_(at::sum(sums, {0}));
}

at::Tensor LayerNormBackward(const at::Tensor& x, const at::Tensor& dy,
                             const NormWeights& norm,
                             const NormGradients& gradients) {
  const at::Tensor x32 = Float(x), weight = Float(norm.weight);
  const at::Tensor bias = Float(norm.bias);
  const int64_t width = x.size(1);
  const auto [out, mean, scale] =
      at::native_layer_norm(x32, {width}, weight, bias, norm.epsilon);
  auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      dy, x32, {width}, mean, scale, weight, bias, {true, true, true});
  gradients.weight.add_(dweight);
  gradients.bias.add_(dbias);
  return dx;
}

}  // namespace

at::Tensor NormForward(const at::Tensor& x, const NormWeights& norm,
                       at::Tensor out) {
  if (norm.kind == stream::NormKind::kRmsNorm) {
    if (!out.defined()) out = at::empty_like(x);
    RmsNormForward(x, norm, out);
    return out;
  }
  const at::Tensor y = std::get<0>(at::native_layer_norm(
      x, {x.size(1)}, norm.weight, norm.bias, norm.epsilon));
  return out.defined() ? out.copy_(y) : y;
}

void NormBackward(const at::Tensor& x, at::TensorList dy,
                  const at::Tensor& residual, const NormWeights& norm,
                  const NormGradients& gradients, const at::Tensor& dx) {
  if (x.size(0) == 0) return;
  if (norm.kind == stream::NormKind::kRmsNorm) {
    return RmsNormBackward(x, dy, residual, norm, gradients.weight, dx);
  }
  at::Tensor sum = Float(dy[0]);
  for (const at::Tensor& part : dy.slice(1)) sum.add_(part);
  at::Tensor result = LayerNormBackward(x, sum, norm, gradients);
  if (residual.defined()) result.add_(residual);
  dx.copy_(result);
}

at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, at::Tensor out) {
  const at::Tensor transposed = weight.t();
  if (out.defined()) {
    return bias.defined() ? at::addmm_out(out, bias, x, transposed)
                          : at::mm_out(out, x, transposed);
  }
  return bias.defined() ? at::addmm(bias, x, transposed)
                        : at::mm(x, transposed);
}

void LinearBackwardWeight(const at::Tensor& x,
                          std::initializer_list<LinearGradients> layers) {
  if (x.size(0) == 0) return;
  BackendOf(x).AddWeightGradients(x, layers);
}

at::Tensor LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight,
                               at::Tensor out) {
  return out.defined() ? at::mm_out(out, dy, weight) : at::mm(dy, weight);
}

at::Tensor ActivationForward(const at::Tensor& gate, const at::Tensor& up,
                             at::Tensor out) {
  if (!gate.defined()) {
    return out.defined() ? at::gelu_out(out, up, "tanh") : at::gelu(up, "tanh");
  }
  if (!out.defined()) out = at::empty_like(up);
  const ObservedCall observed("sluice::swiglu", {gate, up}, {out});
  ForElement(up.scalar_type(), [&]<typename T>() {
    BackendOf(up).Compute(SwigluCall<T>{{up.numel()},
                                        {.gate = Elements<T>(gate),
                                         .up = Elements<T>(up),
                                         .y = Elements<T>(out)}});
  });
  return out;
}

ActivationGradients ActivationBackward(const at::Tensor& gradient,
                                       const at::Tensor& gate,
                                       const at::Tensor& up) {
  if (!gate.defined()) return {{}, at::gelu_backward(gradient, up, "tanh")};
  const at::Tensor d_gate = at::empty_like(gate);
  const ObservedCall observed("sluice::swiglu_backward", {gradient, gate, up},
                              {d_gate, gradient});
  ForElement(up.scalar_type(), [&]<typename T>() {
    BackendOf(up).Compute(
        SwigluBackwardCall<T>{{up.numel()},
                              {.dy = Elements<T>(gradient),
                               .gate = Elements<T>(gate),
                               .up = Elements<T>(up),
                               .d_gate = Elements<T>(d_gate),
                               .d_up = Elements<T>(gradient)}});
  });
  return {d_gate, gradient};
}

RopeTables MakeRopeTables(int64_t begin, int64_t rows, int64_t dim,
                          double theta, at::Device device) {
  const at::TensorOptions wide = On(device, at::kDouble);
  const int64_t half = dim / 2;
  const at::Tensor pair = at::arange(half, wide);
  const at::Tensor frequency =
      at::pow(theta, pair.mul(-2.0 / static_cast<double>(dim)));
  const at::Tensor position = at::arange(begin, begin + rows, wide);
  const at::Tensor angle = at::outer(position, frequency).view({rows, 1, half});
  return {at::cos(angle).to(at::kFloat), at::sin(angle).to(at::kFloat)};
}

at::Tensor ApplyRope(const at::Tensor& x, const RopeTables& tables,
                     bool inverse, at::ScalarType type) {
  const bool in_place = x.scalar_type() == type;
  const at::Tensor y =
      in_place ? x : at::empty(x.sizes(), x.options().dtype(type));
  const ObservedCall observed("sluice::rope", {x, tables.cos, tables.sin}, {y});
  const ops::RopeShape shape = {x.size(0), x.size(1), x.size(2), inverse};
  const auto turn = [&]<typename In, typename Out>() {
    BackendOf(x).Compute(RopeCall<In, Out>{shape,
                                           {.x = Elements<In>(x),
                                            .cos = Elements<float>(tables.cos),
                                            .sin = Elements<float>(tables.sin),
                                            .y = Elements<Out>(y)}});
  };
  ForElement(type, [&]<typename T>() {
    in_place ? turn.template operator()<T, T>()
             : turn.template operator()<float, T>();
  });
  return y;
}

void LogitGradient(const at::Tensor& logits, const at::Tensor& labels,
                   double scale, at::Tensor& loss_sum) {
  const at::Tensor losses =
      at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  {
    const ObservedCall observed("sluice::softmax_gradient", {logits, labels},
                                {logits, losses});
    ForElement(logits.scalar_type(), [&]<typename T>() {
      BackendOf(logits).Compute(
          SoftmaxCall<T>{{.rows = logits.size(0),
                          .width = logits.size(1),
                          .ignored = kIgnoredLabel,
                          .scale = static_cast<float>(scale)},
                         {.logits = Elements<T>(logits),
                          .labels = Elements<int64_t>(labels),
                          .loss = Elements<float>(losses)}});
    });
  }
  loss_sum.add_(at::sum(losses, at::kDouble));
}

at::Tensor LossForwardBackward(const at::Tensor& normed,
                               const at::Tensor& labels,
                               const at::Tensor& weight, double scale,
                               int64_t rows_at_once, at::Tensor& loss_sum,
                               at::Tensor& weight_gradient) {
  at::Tensor gradient = at::empty_like(normed);
  at::Tensor no_bias;
  for (int64_t row = 0; row < normed.size(0); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, normed.size(0) - row);
    const at::Tensor out = gradient.narrow(0, row, rows);
    const at::Tensor x = normed.narrow(0, row, rows);
    const at::Tensor d_logits = LinearForward(x, weight, {});
    LogitGradient(d_logits, labels.narrow(0, row, rows), scale, loss_sum);
    LinearBackwardWeight(x, {{d_logits, weight_gradient, no_bias}});
    LinearBackwardInput(d_logits, weight, out);
  }
  return gradient;
}

StepResult ReadResult(const at::Tensor& loss_sum, const at::Tensor& labels) {
  const at::Tensor count =
      at::sum(labels.ne(kIgnoredLabel), at::kDouble);  // exact to 2^53
  // Torch copies both sums to the host at once, as one complex number.
  const auto both = at::complex(loss_sum, count).item<c10::complex<double>>();
  return {both.real(), static_cast<int64_t>(both.imag())};
}

}  // namespace sluice::runtime
