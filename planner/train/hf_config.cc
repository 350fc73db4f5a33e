// Hugging Face's config.json: field names differ by family.
#include <fmt/format.h>

#include <string>

#include "planner/train/model.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/plan/json_reader.h"

namespace sluice::planner::train {
namespace {

using plan::FieldReader;

// Longer ones are none; `sluicectl` reads whole files.
constexpr size_t kMostBytes = 16 << 20;

// A field that is absent or null takes its family's default.
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
  bool Flag(const char* key, bool otherwise) {
    return Given(key) ? fields_.Flag(key) : otherwise;
  }
  // What the model has and the cost model does not know.
  void RefuseUnknown() {
    for (const Unknown& unknown : kUnknown) {
      if (!fields_.ok() || !Given(unknown.key)) continue;
      const nlohmann::json& value = json_.at(unknown.key);
      if (!value.is_number() || value <= unknown.harmless) continue;
      *status_ = absl::InvalidArgumentError(
          fmt::format("{}: {}: {} are not modelled", unknown.key, value.dump(),
                      unknown.what));
    }
  }
  // Layers whose attention does not see all that came before.
  void RefuseWindows(const std::string& family) {
    if (!fields_.ok()) return;
    // qwen2 and qwen3 name a window that they do not use.
    const bool used = Flag("use_sliding_window", family == "mistral");
    if (fields_.ok() && used && Given("sliding_window")) {
      *status_ = absl::InvalidArgumentError(
          fmt::format("sliding_window: {}: sliding windows are not modelled",
                      json_.at("sliding_window").dump()));
    }
    if (!fields_.ok() || !Given("layer_types")) return;
    for (const nlohmann::json& type : json_.at("layer_types")) {
      if (type == "full_attention") continue;
      *status_ = absl::InvalidArgumentError(fmt::format(
          "layer_types: {}: only full_attention is modelled", type.dump()));
      return;
    }
  }
  // Where the weights are from, if the file says so.
  std::string Origin() {
    constexpr size_t kMost = 200;
    if (!Given("_name_or_path")) return "";
    return Printable(fields_.Text("_name_or_path", kMost));
  }
  std::string Family() {
    return fields_.Choice("model_type", {"llama", "mistral", "qwen2", "qwen3",
                                         "gpt2", "gpt_neox"});
  }

 private:
  bool Given(const char* key) const {
    return fields_.Has(key) && !json_.at(key).is_null();
  }

  // A field above `harmless` means what `what` says.
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

// llama, mistral, qwen2, qwen3: one set of names.
ModelShape LlamaLike(Reader& in) {
  ModelShape model;
  model.layers = in.Whole("num_hidden_layers");
  model.hidden = in.Whole("hidden_size");
  model.heads = in.Whole("num_attention_heads");
  model.kv_heads = in.Whole("num_key_value_heads", model.heads);
  model.head_size =
      in.Whole("head_dim", model.heads > 0 ? model.hidden / model.heads : 0);
  model.ffn = in.Whole("intermediate_size");
  model.vocab = in.Whole("vocab_size");
  model.gated = true;
  model.tied = in.Flag("tie_word_embeddings", false);
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
  model.max_positions = in.Whole("n_positions", 0);
  return model;
}

ModelShape GptNeoX(Reader& in) {
  ModelShape model = LlamaLike(in);
  model.gated = false;
  model.norm = stream::NormKind::kLayerNorm;
  model.biases = stream::Biases::All();
  model.parallel_residual = in.Flag("use_parallel_residual", true);
  return model;
}

}  // namespace

absl::StatusOr<ModelShape> ReadHuggingFaceConfig(std::string_view json,
                                                 std::string_view source) {
  absl::Status status;
  const nlohmann::json parsed = plan::ParseChecked(json, kMostBytes, &status);
  Reader in(parsed, &status);
  in.RefuseUnknown();
  const std::string origin = in.Origin();
  const std::string family = in.Family();
  in.RefuseWindows(family);
  ModelShape model = family == "gpt2"       ? Gpt2(in)
                     : family == "gpt_neox" ? GptNeoX(in)
                                            : LlamaLike(in);
  if (family == "qwen2")
    model.biases.q = model.biases.k = model.biases.v = true;
  model.query_key_norm = family == "qwen3";
  if (status.ok()) status = model.Validate();
  if (!status.ok()) return Annotate(status, source);
  model.name = fmt::format("{} ({})", family,
                           origin.empty() ? std::string(source) : origin);
  return model;
}

}  // namespace sluice::planner::train
