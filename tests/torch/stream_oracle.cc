#include "tests/torch/stream_oracle.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace sluice::runtime {
namespace {

using at::Tensor;

Tensor Norm(const stream::ModelShape& c, const Tensor& x, const Tensor& weight,
            const Tensor& bias) {
  if (c.norm == stream::NormKind::kLayerNorm) {
    return at::layer_norm(x, {c.hidden}, weight, bias, c.norm_epsilon);
  }
  const Tensor x2 = x.to(at::kDouble);
  return (x2 / (x2.pow(2).mean(-1, true) + c.norm_epsilon).sqrt())
             .to(x.scalar_type()) *
         weight;
}

// `x` is [heads, rows, dim].
Tensor Rotate(const stream::ModelShape& c, const Tensor& x) {
  const int64_t rows = x.size(1), dim = x.size(2);
  const Tensor exponent = at::arange(0, dim, 2, at::kDouble) / dim;
  const Tensor angle =
      at::arange(rows, at::kDouble).unsqueeze(1) /
      at::pow(at::scalar_tensor(c.rope->theta, at::kDouble), exponent);
  const Tensor both = at::cat({angle, angle}, 1);
  const std::vector<Tensor> half = x.chunk(2, -1);
  const Tensor turned = at::cat({-half[1], half[0]}, -1);
  return (x * both.cos() + turned * both.sin()).to(x.scalar_type());
}

Tensor Attention(const stream::ModelShape& c, const LayerTensors& w,
                 const Tensor& x) {
  const int64_t rows = x.size(0), dim = c.head_dim();
  const auto heads = [&](const Tensor& weight, const Tensor& bias,
                         int64_t count) {
    return at::linear(x, weight, bias.defined() ? bias : Tensor())
        .view({rows, count, dim})
        .transpose(0, 1);
  };
  Tensor q = heads(w.q_weight, w.q_bias, c.heads);
  Tensor k = heads(w.k_weight, w.k_bias, c.kv_heads);
  Tensor v = heads(w.v_weight, w.v_bias, c.kv_heads);
  if (c.rope) {
    q = Rotate(c, q);
    k = Rotate(c, k);
  }
  k = k.repeat_interleave(c.heads / c.kv_heads, 0);
  v = v.repeat_interleave(c.heads / c.kv_heads, 0);
  Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(double(dim));
  const Tensor future = at::ones({rows, rows}, at::kBool).triu(1).unsqueeze(0);
  scores = scores.masked_fill(future, -INFINITY);
  const Tensor p = at::softmax(scores.to(at::kDouble), -1);
  const Tensor o = at::matmul(p.to(v.scalar_type()), v);
  return at::linear(o.transpose(0, 1).reshape({rows, c.query_width()}),
                    w.o_weight, w.o_bias.defined() ? w.o_bias : Tensor());
}

Tensor Ffn(const stream::ModelShape& c, const LayerTensors& w,
           const Tensor& x) {
  const auto linear = [](const Tensor& in, const Tensor& weight,
                         const Tensor& bias) {
    return at::linear(in, weight, bias.defined() ? bias : Tensor());
  };
  const Tensor up = linear(x, w.up_weight, w.up_bias);
  const Tensor wide = c.gated ? at::silu(at::linear(x, w.gate_weight)) * up
                              : at::gelu(up, "tanh");
  return linear(wide, w.down_weight, w.down_bias);
}

}  // namespace

OracleResult RunOracle(const stream::ModelShape& config,
                       const ModelTensors& weights, const Tensor& tokens,
                       const Tensor& labels, int64_t global_count,
                       at::ScalarType dtype) {
  ModelTensors source = weights, copy;
  copy.layers.resize(config.layers);
  const auto from = NamedTensors(config, source);
  const auto to = NamedTensors(config, copy);
  for (size_t i = 0; i < from.size(); ++i) {
    *to[i].tensor =
        from[i].tensor->detach().to(dtype).clone().requires_grad_(true);
  }
  Tensor x = copy.embed.index_select(0, tokens);
  if (copy.positions.defined()) {
    x = x + copy.positions.narrow(0, 0, tokens.size(0));
  }
  for (const LayerTensors& w : copy.layers) {
    x = x + Attention(config, w, Norm(config, x, w.norm1_weight, w.norm1_bias));
    x = x + Ffn(config, w, Norm(config, x, w.norm2_weight, w.norm2_bias));
  }
  x = Norm(config, x, copy.final_norm_weight, copy.final_norm_bias);
  const Tensor logits = at::linear(x, copy.logits_weight()).to(at::kDouble);
  const Tensor loss = at::cross_entropy_loss(
      logits, labels, {}, at::Reduction::Sum, /*ignore_index=*/-100);
  (loss / static_cast<double>(global_count)).backward();
  OracleResult result{loss.item<double>(), {}};
  for (const NamedTensor& named : to) {
    result.gradients.push_back(named.tensor->grad().to(at::kDouble));
  }
  return result;
}

GradientError CompareGradients(const stream::ModelShape& config,
                               ModelTensors& gradients,
                               const std::vector<Tensor>& expected) {
  const auto named = NamedTensors(config, gradients);
  const auto group = [](const std::string& name) {
    return name.rfind("layers.", 0) == 0 ? name.substr(0, name.rfind('.'))
                                         : name;
  };
  std::map<std::string, double> largest;
  for (size_t i = 0; i < named.size(); ++i) {
    double& of_group = largest[group(named[i].name)];
    of_group = std::max(of_group, expected[i].abs().max().item<double>());
  }
  GradientError error;
  for (size_t i = 0; i < named.size(); ++i) {
    const double most = expected[i].abs().max().item<double>();
    const double of_group = largest[group(named[i].name)];
    const double scale = std::max(most, 0.01 * of_group);
    const double off = (named[i].tensor->to(at::kDouble) - expected[i])
                           .abs()
                           .max()
                           .item<double>();
    const double relative = scale > 0 ? off / scale : off;
    if (!(relative <= error.worst)) {
      error.worst = relative;
      error.parameter = named[i].name;
    }
    if (most < 1e-3 * of_group) {
      error.unscaled = std::max(error.unscaled, off / of_group);
    } else {
      error.scaled = std::max(error.scaled, relative);
    }
    // A NaN is the worst error, but no comparison finds it larger.
    if (std::isnan(error.worst)) break;
  }
  return error;
}

}  // namespace sluice::runtime
