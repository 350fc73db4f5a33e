// Reads Hugging Face's config.json. Field names differ by family.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "planner/train/settings.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/plan/json_reader.h"

namespace sluice::planner::train {
namespace {

using plan::FieldReader;

// Traits and defaults of a family, from its configuration class in
// transformers.
struct Family {
  std::string_view name, causal_model;
  // 0 stands for as many kv heads as heads, -1 for hidden / heads.
  int64_t kv_heads = 0, head_dim = -1;
  const char* experts = "";  // a mixture's field with the number of experts
  int64_t all_experts = 0, active_experts = 0;
};
constexpr Family kHfFamilies[] = {
    {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM", 8},
    {"qwen2", "Qwen2ForCausalLM", 32},
    {"qwen3", "Qwen3ForCausalLM", 32, 128},
    {"gpt2", "GPT2LMHeadModel"},
    {"gpt_neox", "GPTNeoXForCausalLM"},
    {"mixtral", "MixtralForCausalLM", 8, -1, "num_local_experts", 8, 2},
    {"qwen3_moe", "Qwen3MoeForCausalLM", 4, -1, "num_experts", 128, 8}};

// Fields that change neither the counted bytes nor the counted FLOPs.
// clang-format off
constexpr std::string_view kNeutralFields[] = {
    "_attn_implementation", "_name_or_path", "activation_function",
    "attention_bias", "hidden_act", "id2label", "initializer_range", "label2id",
    "max_position_embeddings", "max_window_layers", "mlp_bias",
    "norm_topk_prob", "output_router_logits", "n_ctx", "pretraining_tp",
    "reorder_and_upcast_attn", "rope_parameters", "rope_scaling", "rope_theta",
    "rotary_emb_base", "rotary_pct", "scale_attn_weights", "sliding_window",
    "task_specific_params", "transformers_version", "use_cache"};
// clang-format on
constexpr std::string_view kNeutralEndings[] = {"_token_id", "_dropout",
                                                "_pdrop", "_eps", "_epsilon"};

bool IsNeutral(const std::string& field) {
  return std::ranges::find(kNeutralFields, field) != std::end(kNeutralFields) ||
         field.starts_with("summary_") || field.starts_with("router_") ||
         std::ranges::any_of(kNeutralEndings, [&](std::string_view ending) {
           return field.ends_with(ending);
         });
}

// A field that estimates ignore, and what is counted in its place.
struct Special {
  std::string_view key, counted;
};
constexpr Special kSpecial[] = {
    {"architectures", "as the family's causal model, without other heads"},
    {"auto_map", "as the family's model, whose code may be another"},
    {"dtype", "in bf16 with fp32 optimizer states"},
    {"dual_chunk_attention_config",
     "as full attention, which transformers computes"},
    {"quantization_config", "as not quantised, all weights trained in bf16"},
    {"torch_dtype", "in bf16 with fp32 optimizer states"}};

constexpr size_t kMostShown = 60;  // of a value in a note, which is one line
std::string ShownValue(const nlohmann::json& value) {
  const bool method = value.is_object() && value.contains("quant_method");
  std::string text =
      (method ? value.at("quant_method") : value)
          .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMostShown) {
    text.replace(kMostShown, std::string::npos, "...");
  }
  return text;
}

// Reads fields. An absent or null field has the default of its family.
class Reader {
 public:
  Reader(const nlohmann::json& json, absl::Status* status)
      : json_(json), status_(status), fields_(json, "", status) {}

  int64_t Whole(const char* key) {
    return fields_.Int(key, 0, ModelShape::kMost);
  }
  int64_t Whole(const char* key, int64_t otherwise) {
    return Given(key) ? Whole(key) : otherwise;
  }
  // An absent field means `absent`, a null field `null_value`.
  int64_t Whole(const char* key, int64_t absent, int64_t null_value) {
    return fields_.Has(key) ? Whole(key, null_value) : absent;
  }
  bool Flag(const char* key, bool otherwise) {
    return Given(key) ? fields_.Flag(key) : otherwise;
  }
  void RefuseUnknown() {
    const std::string name = json_.is_object() && Given("model_type")
                                 ? fields_.Text("model_type", 64)
                                 : "";
    for (const Unknown& unknown : kUnknown) {
      if (!fields_.ok() || !Given(unknown.key)) continue;
      if (unknown.key == std::string_view(FamilyNamed(name).experts)) continue;
      const nlohmann::json& value = json_.at(unknown.key);
      if (!value.is_number() || value <= unknown.harmless) continue;
      *status_ = absl::InvalidArgumentError(
          fmt::format("{}: {}: {} are not modelled", unknown.key, value.dump(),
                      unknown.what));
    }
  }
  // Refuses layers in which attention does not see all earlier tokens.
  void RefuseWindows(std::string_view family) {
    if (!fields_.ok()) return;
    // qwen2 and qwen3 have a window that is not used by default. Null means no
    // window; if the field is absent, mistral uses 4,096, and mixtral none.
    const bool is_mistral = family == "mistral" || family == "mixtral";
    const bool used = Flag("use_sliding_window", is_mistral);
    const bool absent = family != "mixtral" && !fields_.Has("sliding_window");
    if (fields_.ok() && used && (absent || Given("sliding_window"))) {
      *status_ = absl::InvalidArgumentError(fmt::format(
          "sliding_window: {}: sliding windows are not modelled; null is none",
          absent ? "is absent, which means 4096"
                 : ShownValue(json_.at("sliding_window"))));
    }
    if (!fields_.ok() || !Given("layer_types")) return;
    for (const nlohmann::json& type : json_.at("layer_types")) {
      if (type == "full_attention") continue;
      *status_ = absl::InvalidArgumentError(fmt::format(
          "layer_types: {}: only full_attention is modelled", type.dump()));
      return;
    }
  }
  void RefuseDenseLayers() {
    if (!fields_.ok()) return;
    const bool dense =
        Given("mlp_only_layers") && !json_.at("mlp_only_layers").empty();
    if (Whole("decoder_sparse_step", 1) == 1 && !dense) return;
    *status_ = absl::InvalidArgumentError(
        "mlp_only_layers, decoder_sparse_step: layers without experts beside "
        "layers with them are not modelled");
  }
  // Returns where the weights come from, if the file says so.
  std::string Origin() {
    if (!Given("_name_or_path")) return "";
    const nlohmann::json& origin = json_.at("_name_or_path");
    return origin.is_string() ? PrintableLine(origin) : "";
  }
  // Returns the family that the file names, or the first on an error.
  const Family& ModelFamily() {
    return FamilyNamed(fields_.Choice(
        "model_type", {"llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox",
                       "mixtral", "qwen3_moe"}));
  }
  // Returns sentences about the fields that the estimate does not follow. Call
  // it after all counted fields are read.
  std::vector<std::string> Notes(const Family& family) const {
    std::vector<std::string> notes;
    std::string others;
    for (const auto& [key, value] : json_.items()) {
      if (fields_.WasRead(key) || IsNeutral(key) || SwitchesNothingOn(value) ||
          IsAsCounted(value, family)) {
        continue;
      }
      const std::string shown = fmt::format(
          "{} {}", Printable(key.substr(0, kMostShown)), ShownValue(value));
      const auto* special = std::ranges::find(kSpecial, key, &Special::key);
      if (special != std::end(kSpecial)) {
        notes.push_back(fmt::format("{}: counted {}", shown, special->counted));
      } else {
        others += (others.empty() ? "not counted: " : ", ") + shown;
      }
    }
    if (!others.empty()) notes.push_back(others);
    return notes;
  }

 private:
  static const Family& FamilyNamed(std::string_view name) {
    const auto* found = std::ranges::find(kHfFamilies, name, &Family::name);
    return found == std::end(kHfFamilies) ? kHfFamilies[0] : *found;
  }
  static bool IsAsCounted(const nlohmann::json& value, const Family& family) {
    return value == "bfloat16" ||
           value == nlohmann::json::array({family.causal_model});
  }
  static bool SwitchesNothingOn(const nlohmann::json& value) {
    return value.is_null() || value == false || value == 0 || value == "" ||
           (value.is_structured() && value.empty());
  }
  bool Given(const char* key) const {
    return fields_.Has(key) && !json_.at(key).is_null();
  }

  // A field that the cost model does not support if it is above `harmless`.
  struct Unknown {
    const char* key;
    double harmless;
    const char* what;
  };
  static constexpr Unknown kUnknown[] = {
      {"num_local_experts", 1, "mixtures of experts"},
      {"num_experts", 1, "mixtures of experts"},
      {"n_routed_experts", 1, "mixtures of experts"},
      {"moe_num_experts", 1, "mixtures of experts"},
      {"kv_lora_rank", 0, "latent keys and values"},
      {"attn_logit_softcapping", 0, "soft-capped attention scores"},
      {"final_logit_softcapping", 0, "soft-capped logits"}};

  const nlohmann::json& json_;
  absl::Status* status_;
  FieldReader fields_;
};

// Reads llama, mistral, qwen2 and qwen3, which have the same field names.
ModelShape LlamaLike(Reader& in, const Family& family) {
  ModelShape model;
  model.layers = in.Whole("num_hidden_layers");
  model.hidden = in.Whole("hidden_size");
  model.heads = in.Whole("num_attention_heads");
  model.kv_heads = in.Whole("num_key_value_heads",
                            family.kv_heads > 0 ? family.kv_heads : model.heads,
                            model.heads);
  const int64_t head_dim = in.Whole("head_dim", family.head_dim, -1);
  if (head_dim >= 0) model.head_size = head_dim;
  model.ffn = in.Whole("intermediate_size");
  model.vocab = in.Whole("vocab_size");
  model.gated = true;
  model.tied = in.Flag("tie_word_embeddings", false);
  return model;
}

// Reads a mixture in which every layer has experts and no other FFN.
ModelShape MixtureLike(Reader& in, const Family& family) {
  ModelShape model = LlamaLike(in, family);
  model.experts = in.Whole(family.experts, family.all_experts);
  model.active_experts = in.Whole("num_experts_per_tok", family.active_experts);
  if (family.name == "mixtral") return model;
  model.ffn = in.Whole("moe_intermediate_size");
  in.RefuseDenseLayers();
  return model;
}

ModelShape Gpt2(Reader& in) {
  ModelShape model = stream::Gpt({});
  model.layers = in.Whole("n_layer");
  model.hidden = in.Whole("n_embd");
  model.heads = in.Whole("n_head");
  model.kv_heads = model.heads;
  model.ffn = in.Whole("n_inner", 4 * model.hidden);
  model.vocab = in.Whole("vocab_size");
  model.tied = in.Flag("tie_word_embeddings", true);
  model.max_positions = in.Whole("n_positions", 1024);
  return model;
}

ModelShape GptNeoX(Reader& in, const Family& family) {
  ModelShape model = LlamaLike(in, family);
  model.gated = false;
  model.norm = stream::NormKind::kLayerNorm;
  model.biases = stream::Biases::All();
  model.parallel_residual = in.Flag("use_parallel_residual", true);
  return model;
}

}  // namespace

absl::StatusOr<ModelShape> ReadHuggingFaceConfig(
    std::string_view json, std::string_view source,
    std::vector<std::string>* notes) {
  absl::Status status;
  const nlohmann::json parsed = plan::ParseChecked(json, json.size(), &status);
  Reader in(parsed, &status);
  in.RefuseUnknown();
  const std::string origin = in.Origin();
  const Family& family = in.ModelFamily();
  in.RefuseWindows(family.name);
  ModelShape model = family.name == "gpt2"       ? Gpt2(in)
                     : family.name == "gpt_neox" ? GptNeoX(in, family)
                     : *family.experts != '\0'   ? MixtureLike(in, family)
                                                 : LlamaLike(in, family);
  if (family.name == "qwen2") {
    model.biases.q = model.biases.k = model.biases.v = true;
  }
  model.query_key_norm = family.name.starts_with("qwen3");
  if (status.ok()) status = model.Validate();
  if (!status.ok()) return Annotate(status, source);
  model.name = fmt::format("{} ({})", family.name,
                           origin.empty() ? std::string(source) : origin);
  if (notes != nullptr) *notes = in.Notes(family);
  return model;
}

}  // namespace sluice::planner::train
