// Hugging Face's config.json: field names differ by family.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/train/model.h"
#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const Json& json, std::string_view source)
      : json_(json), source_(source) {}

  // The whole number at `key`; where it is absent or null, `otherwise`, and a
  // fault when that is negative.
  int64_t Whole(const char* key, int64_t otherwise = -1) {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) {
      if (otherwise < 0) Fault(fmt::format("'{}' is missing", key));
      return otherwise;
    }
    if (!found->is_number_integer()) {
      Fault(fmt::format("'{}' is {}, not a whole number", key, found->dump()));
      return otherwise;
    }
    return found->get<int64_t>();
  }

  bool Flag(const char* key, bool otherwise) {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) {
      Fault(fmt::format("'{}' is {}, not true or false", key, found->dump()));
      return otherwise;
    }
    return found->get<bool>();
  }

  void Fault(std::string what) {
    if (status_.ok()) {
      status_ =
          absl::InvalidArgumentError(fmt::format("{}: {}", source_, what));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& json_;
  std::string source_;
  absl::Status status_;
};

// llama, mistral, qwen2, qwen3: one set of names.
ModelShape LlamaLike(Reader& in) {
  ModelShape model;
  model.layers = in.Whole("num_hidden_layers");
  model.hidden = in.Whole("hidden_size");
  model.heads = in.Whole("num_attention_heads");
  model.kv_heads = in.Whole("num_key_value_heads", model.heads);
  model.head_dim =
      in.Whole("head_dim", model.heads > 0 ? model.hidden / model.heads : 0);
  model.ffn = in.Whole("intermediate_size");
  model.vocab = in.Whole("vocab_size");
  model.gated = true;
  model.tied = in.Flag("tie_word_embeddings", false);
  return model;
}

ModelShape Gpt2(Reader& in) {
  ModelShape model;
  model.layers = in.Whole("n_layer");
  model.hidden = in.Whole("n_embd");
  model.heads = in.Whole("n_head");
  model.kv_heads = model.heads;
  model.head_dim = model.heads > 0 ? model.hidden / model.heads : 0;
  model.ffn = in.Whole("n_inner", 4 * model.hidden);
  model.vocab = in.Whole("vocab_size");
  model.tied = in.Flag("tie_word_embeddings", true);
  model.max_positions = in.Whole("n_positions", 0);
  return model;
}

ModelShape GptNeoX(Reader& in) {
  ModelShape model = LlamaLike(in);
  model.gated = false;
  return model;
}

}  // namespace

absl::StatusOr<ModelShape> ReadHuggingFaceConfig(std::string_view json,
                                                 std::string_view source) {
  const Json parsed = Json::parse(json, nullptr, false);
  Reader in(parsed, source);
  if (!parsed.is_object()) {
    in.Fault("this is not a JSON object; give a Hugging Face config.json");
    return in.status();
  }
  const auto found = parsed.find("model_type");
  const std::string type = found != parsed.end() && found->is_string()
                               ? found->get<std::string>()
                               : "";
  ModelShape model;
  if (type == "llama" || type == "mistral" || type == "qwen2" ||
      type == "qwen3") {
    model = LlamaLike(in);
  } else if (type == "gpt2") {
    model = Gpt2(in);
  } else if (type == "gpt_neox") {
    model = GptNeoX(in);
  } else {
    in.Fault(
        fmt::format("model_type is '{}'; known are llama, mistral, "
                    "qwen2, qwen3, gpt2, gpt_neox",
                    type));
  }
  if (!in.status().ok()) return in.status();
  model.name = type;
  if (absl::Status status = model.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}", source, std::string(status.message())));
  }
  return model;
}

}  // namespace sluice::planner::train
