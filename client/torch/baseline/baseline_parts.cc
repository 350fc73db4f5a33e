#include "client/torch/baseline/baseline_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include "client/torch/baseline/baseline_ops.h"

namespace sluice::runtime::baseline {

at::Tensor Leaf(const at::Tensor& tensor) {
  return tensor.detach().requires_grad_(true);
}

at::Tensor Norm(const stream::ModelShape& model, const at::Tensor& x,
                const at::Tensor& weight, const at::Tensor& bias) {
  if (model.norm == stream::NormKind::kRmsNorm) {
    return RmsNorm(x, weight, model.norm_epsilon);
  }
  return at::layer_norm(x, {model.hidden}, weight, bias, model.norm_epsilon);
}

at::Tensor FeedForward(const stream::ModelShape& model, const at::Tensor& h,
                       const LayerTensors& w) {
  at::Tensor up = at::linear(h, w.up_weight, w.up_bias);
  if (model.gated) {
    up = at::silu(at::linear(h, w.gate_weight)) * up;
  } else {
    up = at::gelu(up, "tanh");
  }
  return at::linear(up, w.down_weight, w.down_bias);
}

at::Tensor Embed(const ModelTensors& weights, const at::Tensor& tokens,
                 int64_t first_position) {
  at::Tensor x = at::index_select(weights.embed, 0, tokens);
  if (weights.positions.defined()) {
    x.add_(weights.positions.narrow(0, first_position, tokens.size(0)));
  }
  return x;
}

void EmbedBackward(ModelTensors& gradients, const at::Tensor& tokens,
                   const at::Tensor& gradient, int64_t first_position) {
  const at::Tensor gradient32 = gradient.to(at::kFloat);
  gradients.embed.index_add_(0, tokens, gradient32);
  if (gradients.positions.defined()) {
    gradients.positions.narrow(0, first_position, tokens.size(0))
        .add_(gradient32);
  }
}

}  // namespace sluice::runtime::baseline
