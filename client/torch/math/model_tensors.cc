#include "client/torch/math/model_tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// One member of a layer: its name, place and shape, and which models have it.
struct LayerMember {
  const char* name;
  at::Tensor LayerTensors::*member;
  std::vector<int64_t> shape;
};

std::vector<LayerMember> LayerMembers(const stream::ModelShape& c) {
  using L = LayerTensors;
  const int64_t q = c.query_width(), kv = c.key_width();
  const stream::Biases& bias = c.biases;
  std::vector<LayerMember> members;
  const auto add = [&](bool has, const char* name, at::Tensor L::*member,
                       std::vector<int64_t> shape) {
    if (has) members.push_back({name, member, std::move(shape)});
  };
  add(true, "norm1_weight", &L::norm1_weight, {c.hidden});
  add(bias.norms, "norm1_bias", &L::norm1_bias, {c.hidden});
  add(true, "q_weight", &L::q_weight, {q, c.hidden});
  add(bias.q, "q_bias", &L::q_bias, {q});
  add(true, "k_weight", &L::k_weight, {kv, c.hidden});
  add(bias.k, "k_bias", &L::k_bias, {kv});
  add(true, "v_weight", &L::v_weight, {kv, c.hidden});
  add(bias.v, "v_bias", &L::v_bias, {kv});
  add(true, "o_weight", &L::o_weight, {c.hidden, q});
  add(bias.o, "o_bias", &L::o_bias, {c.hidden});
  add(true, "norm2_weight", &L::norm2_weight, {c.hidden});
  add(bias.norms, "norm2_bias", &L::norm2_bias, {c.hidden});
  add(c.gated, "gate_weight", &L::gate_weight, {c.ffn, c.hidden});
  add(true, "up_weight", &L::up_weight, {c.ffn, c.hidden});
  add(bias.ffn, "up_bias", &L::up_bias, {c.ffn});
  add(true, "down_weight", &L::down_weight, {c.hidden, c.ffn});
  add(bias.ffn, "down_bias", &L::down_bias, {c.hidden});
  return members;
}

}  // namespace

std::vector<NamedTensor> NamedTensors(const stream::ModelShape& config,
                                      LayerTensors& tensors) {
  std::vector<NamedTensor> named;
  for (const LayerMember& m : LayerMembers(config)) {
    named.push_back({m.name, &(tensors.*m.member)});
  }
  return named;
}

std::vector<NamedTensor> NamedTensors(const stream::ModelShape& config,
                                      ModelTensors& tensors) {
  tensors.layers.resize(config.layers);
  std::vector<NamedTensor> named = {{"embed", &tensors.embed}};
  if (config.max_positions > 0) {
    named.push_back({"positions", &tensors.positions});
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    for (NamedTensor& t : NamedTensors(config, tensors.layers[i])) {
      named.push_back({"layers." + std::to_string(i) + "." + t.name, t.tensor});
    }
  }
  named.push_back({"final_norm_weight", &tensors.final_norm_weight});
  if (config.biases.norms) {
    named.push_back({"final_norm_bias", &tensors.final_norm_bias});
  }
  if (!config.tied) named.push_back({"head", &tensors.head});
  return named;
}

std::vector<std::vector<int64_t>> TensorShapes(
    const stream::ModelShape& config) {
  std::vector<std::vector<int64_t>> shapes = {{config.vocab, config.hidden}};
  if (config.max_positions > 0) {
    shapes.push_back({config.max_positions, config.hidden});
  }
  const std::vector<LayerMember> members = LayerMembers(config);
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const LayerMember& m : members) shapes.push_back(m.shape);
  }
  shapes.push_back({config.hidden});
  if (config.biases.norms) shapes.push_back({config.hidden});
  if (!config.tied) shapes.push_back({config.vocab, config.hidden});
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
  const std::vector<std::vector<int64_t>> shapes = TensorShapes(config);
  ModelTensors unused;
  const std::vector<NamedTensor> named = NamedTensors(config, unused);
  for (size_t i = 0; i < named.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(
        take(i, Draw(config, named[i].name, shapes[i], generator)));
  }
  return absl::OkStatus();
}

}  // namespace sluice::runtime
