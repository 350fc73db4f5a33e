#include "tests/torch/plain_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/var.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace sluice::runtime {
namespace {

at::Tensor Norm(const ModelConfig& c, const at::Tensor& x,
                const at::Tensor& weight, const at::Tensor& bias) {
  if (c.arch == Arch::kLlama) {
    return x * at::rsqrt(at::mean(x * x, {-1}, true) + c.norm_epsilon) * weight;
  }
  const at::Tensor centred = x - at::mean(x, {-1}, true);
  const at::Tensor variance = at::mean(centred * centred, {-1}, true);
  return centred * at::rsqrt(variance + c.norm_epsilon) * weight + bias;
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& b) {
  const at::Tensor y = at::matmul(x, w.t());
  return b.defined() ? y + b : y;
}

// [heads, rows, dim], rotate-half.
at::Tensor Rope(const ModelConfig& c, const at::Tensor& x) {
  const int64_t dim = c.head_dim(), rows = x.size(1);
  const at::Tensor exponent = at::arange(0, dim, 2, at::kDouble) / -double(dim);
  const at::Tensor angle =
      at::outer(at::arange(rows, at::kDouble), at::pow(c.rope_theta, exponent));
  const at::Tensor twice = at::cat({angle, angle}, 1);
  const at::Tensor turned =
      at::cat({-x.narrow(2, dim / 2, dim / 2), x.narrow(2, 0, dim / 2)}, 2);
  return x * at::cos(twice).to(x.scalar_type()) +
         turned * at::sin(twice).to(x.scalar_type());
}

at::Tensor Attention(const ModelConfig& c, const at::Tensor& h,
                     const LayerTensors& w) {
  const int64_t rows = h.size(0), dim = c.head_dim();
  const auto heads = [&](const at::Tensor& t, int64_t count) {
    return t.view({rows, count, dim}).transpose(0, 1);
  };
  at::Tensor q = heads(Linear(h, w.q_weight, w.q_bias), c.heads);
  at::Tensor k = heads(Linear(h, w.k_weight, w.k_bias), c.kv_heads);
  at::Tensor v = heads(Linear(h, w.v_weight, w.v_bias), c.kv_heads);
  if (c.arch == Arch::kLlama) q = Rope(c, q), k = Rope(c, k);
  k = k.repeat_interleave(c.heads / c.kv_heads, 0);
  v = v.repeat_interleave(c.heads / c.kv_heads, 0);
  const at::Tensor later = at::ones({rows, rows}, at::kBool).triu(1);
  const at::Tensor scores =
      (at::matmul(q, k.transpose(1, 2)) / std::sqrt(double(dim)))
          .masked_fill(later, -INFINITY);
  const at::Tensor o = at::matmul(at::softmax(scores, -1), v);
  return Linear(o.transpose(0, 1).reshape({rows, c.hidden}), w.o_weight,
                w.o_bias);
}

at::Tensor FeedForward(const ModelConfig& c, const at::Tensor& h,
                       const LayerTensors& w) {
  const at::Tensor up = Linear(h, w.up_weight, w.up_bias);
  if (c.arch == Arch::kLlama) {
    const at::Tensor gate = Linear(h, w.gate_weight, {});
    return Linear(gate * at::sigmoid(gate) * up, w.down_weight, {});
  }
  const at::Tensor inner = std::sqrt(2 / M_PI) * (up + 0.044715 * up * up * up);
  return Linear(0.5 * up * (1 + at::tanh(inner)), w.down_weight, w.down_bias);
}

at::Tensor Losses(const ModelConfig& c, const ModelTensors& w,
                  const at::Tensor& tokens, const at::Tensor& labels) {
  at::Tensor x = at::index_select(w.embed, 0, tokens);
  if (c.arch == Arch::kGpt) x = x + w.positions.narrow(0, 0, tokens.size(0));
  for (const LayerTensors& layer : w.layers) {
    x = x +
        Attention(c, Norm(c, x, layer.norm1_weight, layer.norm1_bias), layer);
    x = x +
        FeedForward(c, Norm(c, x, layer.norm2_weight, layer.norm2_bias), layer);
  }
  x = Norm(c, x, w.final_norm_weight, w.final_norm_bias);
  const at::Tensor log_p =
      at::log_softmax(at::matmul(x, w.logits_weight().t()), -1);
  const at::Tensor counted = labels.ne(-100);
  return -log_p.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1) *
         counted;
}

std::string LayerOf(const std::string& name) {
  return name.starts_with("layers.") ? name.substr(0, name.rfind('.')) : "";
}

double MaxAbs(const at::Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item<double>();
}

}  // namespace

ModelTensors CopyTensors(const ModelConfig& config, const ModelTensors& from,
                         at::ScalarType dtype) {
  ModelTensors copy = from;
  for (const NamedTensor& t : NamedTensors(config, copy)) {
    *t.tensor = t.tensor->detach().to(dtype).clone();
  }
  return copy;
}

PlainResult PlainStep(const ModelConfig& config, const ModelTensors& weights,
                      const at::Tensor& tokens, const at::Tensor& labels) {
  const at::AutoGradMode with_gradients(true);
  ModelTensors leaves = weights;
  std::vector<at::Tensor> inputs;
  for (const NamedTensor& t : NamedTensors(config, leaves)) {
    *t.tensor = t.tensor->detach().requires_grad_(true);
    inputs.push_back(*t.tensor);
  }
  const at::Tensor sum = Losses(config, leaves, tokens, labels).sum();
  PlainResult result;
  result.count = labels.ne(-100).sum().item<int64_t>();
  result.loss_sum = sum.item<double>();
  const std::vector<at::Tensor> found =
      torch::autograd::grad({sum / static_cast<double>(result.count)}, inputs);
  result.gradients.layers.resize(config.layers);
  size_t i = 0;
  for (const NamedTensor& t : NamedTensors(config, result.gradients)) {
    *t.tensor = found[i++];
  }
  return result;
}

GradientError CompareGradients(const ModelConfig& config, ModelTensors a,
                               ModelTensors b) {
  const std::vector<NamedTensor> ours = NamedTensors(config, a);
  const std::vector<NamedTensor> want = NamedTensors(config, b);
  std::map<std::string, double> largest;
  for (const NamedTensor& t : want) {
    double& at = largest[LayerOf(t.name)];
    at = std::max(at, MaxAbs(*t.tensor));
  }
  GradientError error;
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor b64 = want[i].tensor->to(at::kDouble);
    const double scale =
        std::max(MaxAbs(b64), 0.01 * largest[LayerOf(want[i].name)]);
    const double relative =
        MaxAbs(ours[i].tensor->to(at::kDouble) - b64) / scale;
    if (!(relative <= error.relative)) {
      error = {relative, want[i].name};
    }
  }
  return error;
}

}  // namespace sluice::runtime
