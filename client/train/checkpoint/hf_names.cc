#include "client/train/checkpoint/hf_names.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "proto/base/status.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;
using stream::ModelShape;

struct Pair {
  const char* ours;
  const char* theirs;
};

constexpr Pair kLlamaLayer[] = {
    {"norm1_weight", "input_layernorm.weight"},
    {"q_weight", "self_attn.q_proj.weight"},
    {"k_weight", "self_attn.k_proj.weight"},
    {"v_weight", "self_attn.v_proj.weight"},
    {"o_weight", "self_attn.o_proj.weight"},
    {"norm2_weight", "post_attention_layernorm.weight"},
    {"gate_weight", "mlp.gate_proj.weight"},
    {"up_weight", "mlp.up_proj.weight"},
    {"down_weight", "mlp.down_proj.weight"}};

constexpr Pair kGptLayer[] = {
    {"norm1_weight", "ln_1.weight"},      {"norm1_bias", "ln_1.bias"},
    {"o_weight", "attn.c_proj.weight"},   {"o_bias", "attn.c_proj.bias"},
    {"norm2_weight", "ln_2.weight"},      {"norm2_bias", "ln_2.bias"},
    {"up_weight", "mlp.c_fc.weight"},     {"up_bias", "mlp.c_fc.bias"},
    {"down_weight", "mlp.c_proj.weight"}, {"down_bias", "mlp.c_proj.bias"}};

Json LlamaConfig(const ModelShape& c, int64_t seq_len) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", c.hidden},
          {"intermediate_size", c.ffn},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"vocab_size", c.vocab},
          {"max_position_embeddings", seq_len},
          {"rope_theta", c.rope->theta},
          {"rms_norm_eps", c.norm_epsilon},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"bos_token_id", nullptr},  // bytes as text have no such token
          {"eos_token_id", nullptr},
          {"tie_word_embeddings", false}};
}

Json GptConfig(const ModelShape& c) {
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"n_embd", c.hidden},
               {"n_inner", c.ffn},
               {"n_layer", c.layers},
               {"n_head", c.heads},
               {"n_positions", c.max_positions},
               {"vocab_size", c.vocab},
               {"layer_norm_epsilon", c.norm_epsilon},
               {"activation_function", "gelu_new"},
               {"resid_pdrop", 0.0},
               {"embd_pdrop", 0.0},
               {"attn_pdrop", 0.0},
               // the default, 50256, exceeds most of ours
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"tie_word_embeddings", true}};
  // GPT-2 itself has no grouped queries.
  if (c.kv_heads != c.heads) {
    json["model_type"] = "gpt2_grouped";
    json["num_key_value_heads"] = c.kv_heads;
  }
  return json;
}

}  // namespace

std::vector<int64_t> HfTensor::shape() const {
  std::vector<int64_t> shape = parts[0].shape;
  for (size_t i = 1; i < parts.size(); ++i) shape[0] += parts[i].shape[0];
  if (transposed) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<HfTensor> HfTensors(const ModelShape& config) {
  std::map<std::string, FlatEntry> entries;
  for (FlatEntry& e : FlatEntries(config)) {
    const std::string name = e.name;
    entries.emplace(name, std::move(e));
  }
  std::vector<HfTensor> tensors;
  size_t used = 0;
  const auto add = [&](const std::string& theirs,
                       const std::vector<std::string>& ours,
                       bool transposed = false) {
    HfTensor& tensor = tensors.emplace_back();
    tensor.name = theirs;
    tensor.transposed = transposed;
    for (const std::string& name : ours) {
      tensor.parts.push_back(entries.at(name));
    }
    used += ours.size();
  };
  const bool llama = config.rope.has_value();
  add(llama ? "model.embed_tokens.weight" : "wte.weight", {"embed"});
  if (!llama) add("wpe.weight", {"positions"});
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    if (llama) {
      for (const Pair& pair : kLlamaLayer) {
        add(fmt::format("model.layers.{}.{}", i, pair.theirs), {p + pair.ours});
      }
      continue;
    }
    const std::string h = fmt::format("h.{}.", i);
    add(h + "attn.c_attn.weight",
        {p + "q_weight", p + "k_weight", p + "v_weight"}, true);
    add(h + "attn.c_attn.bias", {p + "q_bias", p + "k_bias", p + "v_bias"});
    for (const Pair& pair : kGptLayer) {
      const std::string theirs = pair.theirs;
      const bool linear =
          theirs.find("c_") != std::string::npos && theirs.ends_with("weight");
      add(h + theirs, {p + pair.ours}, linear);
    }
  }
  add(llama ? "model.norm.weight" : "ln_f.weight", {"final_norm_weight"});
  if (llama) add("lm_head.weight", {"head"});
  if (!llama) add("ln_f.bias", {"final_norm_bias"});
  SLUICE_CHECK(used == entries.size());
  return tensors;
}

std::string HfConfig(const ModelShape& config, int64_t seq_len, bool bf16) {
  Json json = config.rope ? LlamaConfig(config, seq_len) : GptConfig(config);
  json["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

}  // namespace sluice::train
