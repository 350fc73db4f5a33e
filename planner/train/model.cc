#include <fmt/format.h>
#include <fmt/ranges.h>

#include "planner/train/settings.h"

namespace sluice::planner::train {
namespace {

ModelShape Gpt(std::string name, int64_t layers, int64_t hidden,
               int64_t heads) {
  return stream::Gpt({.name = std::move(name),
                      .layers = layers,
                      .hidden = hidden,
                      .heads = heads,
                      .kv_heads = heads,
                      .ffn = 4 * hidden,
                      .vocab = 50257});
}

struct LlamaWidths {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  int64_t experts = 0, active_experts = 0;
  bool tied = false;
};

ModelShape Llama(std::string name, const LlamaWidths& w) {
  ModelShape model = stream::Llama({.name = std::move(name),
                                    .layers = w.layers,
                                    .hidden = w.hidden,
                                    .heads = w.heads,
                                    .kv_heads = w.kv_heads,
                                    .head_size = w.head_dim,
                                    .ffn = w.ffn,
                                    .vocab = w.vocab,
                                    .experts = w.experts,
                                    .active_experts = w.active_experts});
  model.tied = w.tied;
  return model;
}

// Sources of the shapes are, for gpt-7b to gpt-65b: MEMO, section 5.1 (its
// table of model configurations); gpt-2.7b, gpt-6.7b, gpt-175b: GPT-3's
// table 2.1 (arXiv 2005.14165); llama-405b: arXiv 2407.21783, table 3; llama-*,
// mistral-*, qwen*: the models' own config.json.
const std::vector<ModelShape>& Models() {
  static const std::vector<ModelShape> models = {
      Gpt("gpt-2.7b", 32, 2560, 32),
      Gpt("gpt-6.7b", 32, 4096, 32),
      Gpt("gpt-7b", 32, 4096, 32),
      Gpt("gpt-13b", 40, 5120, 40),
      Gpt("gpt-30b", 48, 7168, 56),
      Gpt("gpt-65b", 80, 8192, 64),
      Gpt("gpt-175b", 96, 12288, 96),
      Llama("llama-1b", {16, 2048, 32, 8, 64, 8192, 128256, 0, 0, true}),
      Llama("llama-3b", {28, 3072, 24, 8, 128, 8192, 128256, 0, 0, true}),
      Llama("llama-8b", {32, 4096, 32, 8, 128, 14336, 128256}),
      Llama("llama-70b", {80, 8192, 64, 8, 128, 28672, 128256}),
      Llama("llama-405b", {126, 16384, 128, 8, 128, 53248, 128256}),
      Llama("mistral-7b", {32, 4096, 32, 8, 128, 14336, 32768}),
      Llama("qwen2.5-7b", {28, 3584, 28, 4, 128, 18944, 152064}),
      Llama("qwen3-8b", {36, 4096, 32, 8, 128, 12288, 151936}),
      Llama("qwen3-14b", {40, 5120, 40, 8, 128, 17408, 151936}),
      Llama("qwen3-32b", {64, 5120, 64, 8, 128, 25600, 151936}),
      Llama("mixtral-8x7b", {32, 4096, 32, 8, 128, 14336, 32000, 8, 2}),
      Llama("mixtral-8x22b", {56, 6144, 48, 8, 128, 16384, 32768, 8, 2}),
      Llama("qwen3-30b-a3b", {48, 2048, 32, 4, 128, 768, 151936, 128, 8}),
      Llama("qwen3-235b-a22b", {94, 4096, 64, 4, 128, 1536, 151936, 128, 8}),
  };
  return models;
}

}  // namespace

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
