#include "planner/train/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

ModelShape Gpt(std::string name, int64_t layers, int64_t hidden,
               int64_t heads) {
  return {.name = std::move(name),
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = 4 * hidden,
          .vocab = 50257};
}

struct LlamaWidths {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  bool tied = false;
};

ModelShape Llama(std::string name, const LlamaWidths& w) {
  return {.name = std::move(name),
          .layers = w.layers,
          .hidden = w.hidden,
          .heads = w.heads,
          .kv_heads = w.kv_heads,
          .head_dim = w.head_dim,
          .ffn = w.ffn,
          .vocab = w.vocab,
          .gated = true,
          .tied = w.tied};
}

// gpt-7b to gpt-65b: MEMO, section 5.1 (its table of model configurations).
// gpt-2.7b, gpt-6.7b: GPT-3's table 2.1 (arXiv 2005.14165), which FPDT uses.
// llama-*, mistral-*, qwen*: the models' own config.json.
const std::vector<ModelShape>& Models() {
  static const std::vector<ModelShape> models = {
      Gpt("gpt-2.7b", 32, 2560, 32),
      Gpt("gpt-6.7b", 32, 4096, 32),
      Gpt("gpt-7b", 32, 4096, 32),
      Gpt("gpt-13b", 40, 5120, 40),
      Gpt("gpt-30b", 48, 7168, 56),
      Gpt("gpt-65b", 80, 8192, 64),
      Llama("llama-1b", {16, 2048, 32, 8, 64, 8192, 128256, true}),
      Llama("llama-3b", {28, 3072, 24, 8, 128, 8192, 128256, true}),
      Llama("llama-8b", {32, 4096, 32, 8, 128, 14336, 128256}),
      Llama("llama-70b", {80, 8192, 64, 8, 128, 28672, 128256}),
      Llama("mistral-7b", {32, 4096, 32, 8, 128, 14336, 32768}),
      Llama("qwen2.5-7b", {28, 3584, 28, 4, 128, 18944, 152064}),
      Llama("qwen3-8b", {36, 4096, 32, 8, 128, 12288, 151936}),
      Llama("qwen3-14b", {40, 5120, 40, 8, 128, 17408, 151936}),
      Llama("qwen3-32b", {64, 5120, 64, 8, 128, 25600, 151936}),
  };
  return models;
}

}  // namespace

double ModelShape::layer_weights() const {
  const double h = double(hidden);
  const double attention = h * (2 * query_width() + 2 * key_width());
  return attention + h * ffn_width() + down_weights();
}

double ModelShape::parameters() const {
  return double(layers) * layer_weights() +
         (tied ? 1.0 : 2.0) * head_weights() +
         double(max_positions) * double(hidden);
}

double ModelShape::skeletal_elements() const {
  return double(hidden) + query_width() + skeletal_others();
}

double ModelShape::skeletal_others() const {
  // Two norms and the residual; q, k, v; up (and gate) and the activation.
  return 3 * double(hidden) + query_width() + 2 * key_width() + ffn_width() +
         double(ffn);
}

absl::Status ModelShape::Validate() const {
  const std::pair<const char*, int64_t> fields[] = {
      {"layers", layers},     {"hidden", hidden},     {"heads", heads},
      {"kv_heads", kv_heads}, {"head_dim", head_dim}, {"ffn", ffn},
      {"vocab", vocab}};
  for (const auto& [name, value] : fields) {
    if (value < 1 || value > kMost) {
      return absl::InvalidArgumentError(fmt::format(
          "model: {} is {}; it must be 1 to {}", name, value, kMost));
    }
  }
  if (heads % kv_heads != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "model: {} heads do not divide by {} kv_heads", heads, kv_heads));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelShape> FindModel(std::string_view name) {
  for (const ModelShape& model : Models()) {
    if (model.name == name) return model;
  }
  return absl::NotFoundError(fmt::format(
      "no model '{}'; there are {}, or give a config.json or --layers "
      "--hidden --heads …",
      name, fmt::join(ModelNames(), " ")));
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelShape& model : Models()) names.push_back(model.name);
  return names;
}

}  // namespace sluice::planner::train
