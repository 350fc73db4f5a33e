#include "client/torch/math/model_tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>

#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::runtime {
std::vector<NamedTensor> NamedTensors(const stream::ModelShape& c,
                                      LayerTensors& t) {
  const int64_t q = c.query_width(), kv = c.key_width();
  const stream::Biases& bias = c.biases;
  std::vector<NamedTensor> named;
  const auto add = [&](bool has, const char* name, at::Tensor& tensor,
                       std::vector<int64_t> shape) {
    if (has) named.push_back({name, &tensor, std::move(shape)});
  };
  add(true, "norm1_weight", t.norm1_weight, {c.hidden});
  add(bias.norms, "norm1_bias", t.norm1_bias, {c.hidden});
  add(true, "q_weight", t.q_weight, {q, c.hidden});
  add(bias.q, "q_bias", t.q_bias, {q});
  add(true, "k_weight", t.k_weight, {kv, c.hidden});
  add(bias.k, "k_bias", t.k_bias, {kv});
  add(true, "v_weight", t.v_weight, {kv, c.hidden});
  add(bias.v, "v_bias", t.v_bias, {kv});
  add(true, "o_weight", t.o_weight, {c.hidden, q});
  add(bias.o, "o_bias", t.o_bias, {c.hidden});
  add(true, "norm2_weight", t.norm2_weight, {c.hidden});
  add(bias.norms, "norm2_bias", t.norm2_bias, {c.hidden});
  add(c.gated, "gate_weight", t.gate_weight, {c.ffn, c.hidden});
  add(true, "up_weight", t.up_weight, {c.ffn, c.hidden});
  add(bias.ffn, "up_bias", t.up_bias, {c.ffn});
  add(true, "down_weight", t.down_weight, {c.hidden, c.ffn});
  add(bias.ffn, "down_bias", t.down_bias, {c.hidden});
  return named;
}

std::vector<NamedTensor> NamedTensors(const stream::ModelShape& config,
                                      ModelTensors& tensors) {
  const int64_t vocab = config.vocab, hidden = config.hidden;
  tensors.layers.resize(config.layers);
  std::vector<NamedTensor> named = {{"embed", &tensors.embed, {vocab, hidden}}};
  if (config.max_positions > 0) {
    named.push_back(
        {"positions", &tensors.positions, {config.max_positions, hidden}});
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    for (NamedTensor& t : NamedTensors(config, tensors.layers[i])) {
      t.name = "layers." + std::to_string(i) + "." + t.name;
      named.push_back(std::move(t));
    }
  }
  named.push_back({"final_norm_weight", &tensors.final_norm_weight, {hidden}});
  if (config.biases.norms) {
    named.push_back({"final_norm_bias", &tensors.final_norm_bias, {hidden}});
  }
  if (!config.tied) named.push_back({"head", &tensors.head, {vocab, hidden}});
  return named;
}

std::vector<std::vector<int64_t>> TensorShapes(
    const stream::ModelShape& config) {
  ModelTensors unused;
  std::vector<std::vector<int64_t>> shapes;
  for (NamedTensor& t : NamedTensors(config, unused)) {
    shapes.push_back(std::move(t.shape));
  }
  return shapes;
}

namespace {

at::Tensor Draw(const stream::ModelShape& config, const std::string& name,
                at::IntArrayRef shape, at::Generator& generator) {
  at::Tensor drawn = at::empty(shape, OnHost(at::kFloat));
  if (name.ends_with("bias")) return drawn.zero_();
  if (name.ends_with("norm_weight") || name.ends_with("norm1_weight") ||
      name.ends_with("norm2_weight")) {
    return drawn.fill_(1);
  }
  double scale = config.init_std;
  if (name.ends_with("o_weight") || name.ends_with("down_weight")) {
    scale /= std::sqrt(2.0 * static_cast<double>(config.layers));
  }
  return drawn.normal_(0, scale, generator);
}

}  // namespace

absl::Status DrawWeights(const stream::ModelShape& config, uint64_t seed,
                         const TakeDrawn& take) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  ModelTensors unused;
  const std::vector<NamedTensor> named = NamedTensors(config, unused);
  for (size_t i = 0; i < named.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(
        take(i, Draw(config, named[i].name, named[i].shape, generator)));
  }
  return absl::OkStatus();
}

}  // namespace sluice::runtime
