#include "client/torch/math/token_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

namespace sluice::runtime {
namespace {

at::Tensor Float(const at::Tensor& t) { return t.to(at::kFloat); }

// 1 / sqrt(mean(x^2) + epsilon), [rows, 1] in fp32.
at::Tensor InverseRms(const at::Tensor& x, double epsilon) {
  at::Tensor rms =
      at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, at::kFloat);
  return rms.square_()
      .div_(static_cast<double>(x.size(1)))
      .add_(epsilon)
      .rsqrt_();
}

at::Tensor RmsNormForward(const at::Tensor& x, const NormWeights& norm) {
  const at::Tensor scale = InverseRms(x, norm.epsilon);
  if (x.scalar_type() == at::kFloat) return (x * scale).mul_(norm.weight);
  return (Float(x).mul_(scale)).mul_(norm.weight).to(x.scalar_type());
}

at::Tensor RmsNormBackward(const at::Tensor& x, const at::Tensor& dy,
                           const NormWeights& norm, at::Tensor& gradient) {
  const at::Tensor scale = InverseRms(x, norm.epsilon);
  const at::Tensor normed = Float(x) * scale;
  const at::Tensor dy32 = Float(dy);
  {
    const at::Tensor product = dy32 * normed;
    gradient.add_(at::sum(product, {0}));
  }
  at::Tensor dx = dy32 * norm.weight;
  const at::Tensor mean = at::sum(dx * normed, {-1}, /*keepdim=*/true)
                              .div_(static_cast<double>(x.size(1)));
  return dx.addcmul_(normed, mean, -1).mul_(scale);
}

at::Tensor LayerNormBackward(const at::Tensor& x, const at::Tensor& dy,
                             const NormWeights& norm,
                             at::Tensor& weight_gradient,
                             at::Tensor& bias_gradient) {
  const at::Tensor x32 = Float(x), weight = Float(norm.weight);
  const at::Tensor bias = Float(norm.bias);
  const int64_t width = x.size(1);
  const auto [out, mean, scale] =
      at::native_layer_norm(x32, {width}, weight, bias, norm.epsilon);
  auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      Float(dy), x32, {width}, mean, scale, weight, bias, {true, true, true});
  weight_gradient.add_(dweight);
  bias_gradient.add_(dbias);
  return dx;
}

}  // namespace

at::Tensor NormForward(const at::Tensor& x, const NormWeights& norm) {
  if (norm.kind == stream::NormKind::kRmsNorm) return RmsNormForward(x, norm);
  return std::get<0>(at::native_layer_norm(x, {x.size(1)}, norm.weight,
                                           norm.bias, norm.epsilon));
}

at::Tensor NormBackward(const at::Tensor& x, const at::Tensor& dy,
                        const NormWeights& norm, at::Tensor& weight_gradient,
                        at::Tensor& bias_gradient) {
  if (x.size(0) == 0) return at::zeros_like(x, at::kFloat);
  if (norm.kind == stream::NormKind::kRmsNorm) {
    return RmsNormBackward(x, dy, norm, weight_gradient);
  }
  return LayerNormBackward(x, dy, norm, weight_gradient, bias_gradient);
}

at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias) {
  if (bias.defined()) return at::addmm(bias, x, weight.t());
  return at::mm(x, weight.t());
}

void LinearBackwardWeight(const at::Tensor& x, const at::Tensor& dy,
                          at::Tensor& weight_gradient,
                          at::Tensor& bias_gradient) {
  if (x.size(0) == 0) return;
  const at::Tensor dy32 = Float(dy);
  weight_gradient.addmm_(dy32.t(), Float(x));
  if (bias_gradient.defined()) bias_gradient.add_(at::sum(dy32, {0}));
}

at::Tensor LinearBackwardInput(const at::Tensor& dy, const at::Tensor& weight) {
  return at::mm(dy.to(weight.scalar_type()), weight);
}

at::Tensor ActivationForward(const at::Tensor& gate, const at::Tensor& up) {
  if (!gate.defined()) return at::gelu(up, "tanh");
  return at::silu(gate).mul_(up);
}

ActivationGradients ActivationBackward(const at::Tensor& gradient,
                                       const at::Tensor& gate,
                                       const at::Tensor& up) {
  if (!gate.defined()) return {{}, at::gelu_backward(gradient, up, "tanh")};
  const at::Tensor by_gate = gradient * up;
  return {at::silu_backward(by_gate, gate), at::silu(gate).mul_(gradient)};
}

}  // namespace sluice::runtime
