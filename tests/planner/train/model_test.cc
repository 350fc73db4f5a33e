// Tests model shapes: the shipped ones, and Hugging Face's config.json.
#include <fmt/format.h>

#include "planner/train/settings.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalidModel = absl::StatusCode::kInvalidArgument;

TEST(TrainModel, ParametersMatchTheModelsNames) {
  const std::pair<const char*, double> billions[] = {
      {"gpt-2.7b", 2.65},  {"gpt-7b", 6.65},     {"gpt-13b", 12.8},
      {"gpt-30b", 29.96},  {"gpt-65b", 64.8},    {"llama-8b", 8.03},
      {"llama-70b", 70.5}, {"mistral-7b", 7.25}, {"qwen2.5-7b", 7.6},
      {"qwen3-8b", 8.19},  {"qwen3-32b", 32.8},  {"llama-1b", 1.24}};
  for (const auto& [name, expected] : billions) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model, FindModel(name));
    EXPECT_NEAR(model.parameters() / 1e9, expected, expected * 0.01) << name;
  }
}

TEST(TrainModel, AGptBlockHasSixteenSkeletalHiddens) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model, FindModel("gpt-7b"));
  EXPECT_EQ(model.skeletal_elements(), 16.0 * 4096);
  EXPECT_EQ(model.skeletal_others(), 14.0 * 4096);
}

TEST(TrainModel, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT(FindModel("gpt-8b"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("llama-8b")));
}

TEST(TrainModel, EveryShippedShapeIsValid) {
  for (const std::string& name : ModelNames()) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model, FindModel(name));
    EXPECT_THAT(model.Validate(), IsOk()) << name;
  }
}

// Qwen3-8B's config, without fields that do not matter.
constexpr const char* kQwen3 = R"({"model_type": "qwen3",
  "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
  "vocab_size": 151936, "tie_word_embeddings": false})";

TEST(HuggingFaceConfig, Qwen3IsTheShippedShape) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape read,
                              ReadHuggingFaceConfig(kQwen3, "config.json"));
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape shipped, FindModel("qwen3-8b"));
  EXPECT_EQ(read.parameters(), shipped.parameters());
  EXPECT_EQ(read.skeletal_elements(), shipped.skeletal_elements());
  EXPECT_TRUE(read.gated);
}

TEST(HuggingFaceConfig, LlamaWithoutKvHeadsHasAsManyAsHeads) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model,
                              ReadHuggingFaceConfig(R"({"model_type": "llama",
        "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": null,
        "intermediate_size": 11008, "vocab_size": 32000})",
                                                    "c"));
  EXPECT_EQ(model.kv_heads, 32);
  EXPECT_EQ(model.head_dim(), 128);
  EXPECT_NEAR(model.parameters() / 1e9, 6.74, 0.01);  // Llama 2 7B
}

TEST(HuggingFaceConfig, Gpt2sOwnFieldNamesAreRead) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ModelShape model,
      ReadHuggingFaceConfig(R"({"model_type": "gpt2", "n_layer": 48,
        "n_embd": 1600, "n_head": 25, "n_positions": 1024,
        "vocab_size": 50257})",
                            "c"));
  EXPECT_EQ(model.ffn, 6400);
  EXPECT_TRUE(model.tied);
  EXPECT_FALSE(model.gated);
  EXPECT_NEAR(model.parameters() / 1e9, 1.557, 0.005);
}

TEST(HuggingFaceConfig, GptNeoXIsUntiedAndNotGated) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ModelShape model,
      ReadHuggingFaceConfig(R"({"model_type": "gpt_neox",
        "num_hidden_layers": 44, "hidden_size": 6144,
        "num_attention_heads": 64, "intermediate_size": 24576,
        "vocab_size": 50432})",
                            "c"));
  EXPECT_NEAR(model.parameters() / 1e9, 20.55, 0.1);
}

TEST(HuggingFaceConfig, IsNamedByItsFamilyAndOriginOrFile) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape file,
                              ReadHuggingFaceConfig(kQwen3, "c.json"));
  EXPECT_EQ(file.name, "qwen3 (c.json)");
  std::string named(kQwen3);
  named.insert(1, R"("_name_or_path": "Qwen/Qwen3-8B", )");
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape origin,
                              ReadHuggingFaceConfig(named, "c.json"));
  EXPECT_EQ(origin.name, "qwen3 (Qwen/Qwen3-8B)");
}

// Training folders have long paths. The name is no reason to refuse a model.
TEST(HuggingFaceConfig, AnyOriginIsRead) {
  for (const std::string& origin :
       {"\"/scratch/" + std::string(300, 'x') + "\"", std::string("5"),
        std::string("\"a\\nb\"")}) {
    std::string named(kQwen3);
    named.insert(1, "\"_name_or_path\": " + origin + ", ");
    SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model,
                                ReadHuggingFaceConfig(named, "c.json"));
    EXPECT_EQ(model.name.find('\n'), std::string::npos);
  }
}

// transformers refuses a Llama with such heads, too.
TEST(HuggingFaceConfig, HeadsThatDoNotDivideTheHiddenSizeAreRefused) {
  const auto read = [](const char* head_dim) {
    return ReadHuggingFaceConfig(
        fmt::format(R"({{"model_type": "llama", "num_hidden_layers": 2,
          "hidden_size": 4100, "num_attention_heads": 32,
          "intermediate_size": 64, "vocab_size": 64, "head_dim": {}}})",
                    head_dim),
        "c");
  };
  EXPECT_THAT(read("null"), StatusIs(kInvalidModel, HasSubstr("hidden 4100")));
  EXPECT_THAT(read("128"), IsOk());
}

TEST(HuggingFaceConfig, AMixturesDefaultsAreItsFamilys) {
  const auto read = [](const std::string& fields) {
    return ReadHuggingFaceConfig(
        R"({"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 64,
          "num_attention_heads": 8, "intermediate_size": 64,
          "moe_intermediate_size": 64, )" +
            fields + "}",
        "c");
  };
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape qwen,
                              read(R"("model_type": "qwen3_moe")"));
  EXPECT_EQ(qwen.experts, 128);
  EXPECT_EQ(qwen.active_experts, 8);
  SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape mixtral,
                              read(R"("model_type": "mixtral")"));
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.active_experts, 2);
  // Mixtral's attention uses a window whenever the file has one.
  EXPECT_THAT(read(R"("model_type": "mixtral", "sliding_window": 4096)"),
              StatusIs(kInvalidModel, HasSubstr("sliding_window: 4096")));
  EXPECT_THAT(read(R"("model_type": "mixtral", "sliding_window": null)"),
              IsOk());
}

TEST(HuggingFaceConfig, FieldsThatAreNotModelledAreRefused) {
  const auto refusal = [](const char* field) {
    return std::string(
        ReadHuggingFaceConfig(
            std::string("{\"model_type\": \"gemma\", ") + field + "}", "c")
            .status()
            .message());
  };
  EXPECT_THAT(refusal("\"num_local_experts\": 8"),
              HasSubstr("c: num_local_experts: 8: mixtures of experts are not "
                        "modelled"));
  EXPECT_THAT(refusal("\"n_routed_experts\": 256"),
              HasSubstr("n_routed_experts: 256"));
  EXPECT_THAT(refusal("\"attn_logit_softcapping\": 50.0"),
              HasSubstr("attn_logit_softcapping: 50.0"));
  // Fields that switch nothing on are not refused.
  EXPECT_THAT(refusal("\"num_experts\": 1, \"attn_logit_softcapping\": null"),
              HasSubstr("'gemma' is none of"));
}

TEST(TrainModel, AMixtureStoresAllExpertsAndComputesTheActive) {
  const struct {
    const char* name;
    double billions, active;  // billions of parameters, by the models' pages
  } mixtures[] = {{"mixtral-8x7b", 46.7, 12.9},
                  {"mixtral-8x22b", 140.6, 39.1},
                  {"qwen3-30b-a3b", 30.5, 3.3},
                  {"qwen3-235b-a22b", 235, 22}};
  for (const auto& [name, billions, active] : mixtures) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model, FindModel(name));
    EXPECT_NEAR(model.parameters() / 1e9, billions, 0.01 * billions) << name;
    EXPECT_NEAR(double(model.trained_parameters()) / 1e9, billions,
                0.01 * billions);
    const double computed =
        double(model.layers) * model.layer_weights() + 2 * model.head_weights();
    EXPECT_NEAR(computed / 1e9, active, 0.02 * active) << name;
  }
}

TEST(HuggingFaceConfig, MixturesAreTheShippedShapes) {
  const auto read = [](const char* config) {
    return ReadHuggingFaceConfig(config, "c");
  };
  const std::pair<const char*, const char*> configs[] = {
      {"mixtral-8x7b", R"({"model_type": "mixtral", "num_hidden_layers": 32,
        "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "sliding_window": null, "num_local_experts": 8,
        "num_experts_per_tok": 2})"},
      {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "num_hidden_layers": 48,
        "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 128,
        "num_key_value_heads": 4, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": []})"}};
  for (const auto& [name, config] : configs) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model, read(config));
    EXPECT_EQ(model.parameters(), FindModel(name)->parameters()) << name;
    EXPECT_EQ(model.layer_weights(), FindModel(name)->layer_weights());
  }
  std::string mixed = configs[1].second;
  mixed.replace(mixed.find("[]"), 2, "[0]");
  EXPECT_THAT(ReadHuggingFaceConfig(mixed, "c"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HuggingFaceConfig, WindowsThatAreUsedAreRefused) {
  const auto read = [](const std::string& family, const char* fields) {
    std::string text(kQwen3);
    text.replace(text.find("qwen3"), 5, family);
    return ReadHuggingFaceConfig(text.insert(1, fields), "c").status();
  };
  EXPECT_THAT(read("mistral", R"("sliding_window": 4096, )"),
              StatusIs(kInvalidModel, HasSubstr("sliding_window: 4096")));
  EXPECT_THAT(read("mistral", R"("sliding_window": null, )"), IsOk());
  EXPECT_THAT(read("qwen3", R"("sliding_window": 4096, )"), IsOk());
  EXPECT_THAT(read("qwen3", R"("sliding_window": 4096,
                               "use_sliding_window": true, )"),
              StatusIs(kInvalidModel, HasSubstr("sliding windows")));
  EXPECT_THAT(
      read("qwen3", R"("layer_types": ["full_attention",
                               "sliding_attention"], )"),
      StatusIs(kInvalidModel, HasSubstr("\"sliding_attention\": only")));
  EXPECT_THAT(read("qwen3", R"("layer_types": ["full_attention"], )"), IsOk());
}

// Mistral's and Qwen's kv heads, Qwen 3's head size and Mistral's window have
// other defaults than Llama's.
TEST(HuggingFaceConfig, OmittedFieldsHaveTheFamilysDefaults) {
  const auto read = [](const std::string& family, const std::string& fields) {
    return ReadHuggingFaceConfig(
        "{\"model_type\": \"" + family + "\", " + fields +
            R"("num_hidden_layers": 4, "hidden_size": 2048,
               "num_attention_heads": 32, "intermediate_size": 5632,
               "vocab_size": 32000})",
        "c");
  };
  struct Default {
    const char* family;
    int64_t kv_heads, head_dim;
  };
  for (const Default& d : {Default{"llama", 32, 64}, Default{"mistral", 8, 64},
                           Default{"qwen2", 32, 64}, Default{"qwen3", 32, 128},
                           Default{"gpt_neox", 32, 64}}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const ModelShape model,
                                read(d.family, "\"sliding_window\": null, "));
    EXPECT_EQ(model.kv_heads, d.kv_heads) << d.family;
    EXPECT_EQ(model.head_dim(), d.head_dim) << d.family;
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ModelShape null,
      read("mistral", R"("num_key_value_heads": null, "head_dim": null,
                         "sliding_window": null, )"));
  EXPECT_EQ(null.kv_heads, 32);
  EXPECT_EQ(null.head_dim(), 64);
  EXPECT_THAT(read("mistral", "").status(),
              StatusIs(kInvalidModel, HasSubstr("absent, which means 4096")));
  EXPECT_THAT(read("qwen2", R"("use_sliding_window": true, )").status(),
              StatusIs(kInvalidModel, HasSubstr("absent, which means 4096")));
  EXPECT_THAT(read("qwen2", ""), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const ModelShape gpt2,
      ReadHuggingFaceConfig(R"({"model_type": "gpt2", "n_layer": 12,
        "n_embd": 768, "n_head": 12, "vocab_size": 50257})",
                            "c"));
  EXPECT_EQ(gpt2.max_positions, 1024);
}

TEST(HuggingFaceConfig, FieldsThatChangeTheModelAreNoted) {
  const auto notes = [](const char* fields) {
    std::vector<std::string> notes;
    EXPECT_THAT(ReadHuggingFaceConfig(std::string(kQwen3).insert(1, fields),
                                      "c", &notes),
                IsOk());
    return notes;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(notes(R"("architectures": ["Qwen3ForCausalLM"], "use_cache": true,
                       "torch_dtype": "bfloat16", "rope_theta": 1e6,
                       "eos_token_id": [1, 2], "rms_norm_eps": 1e-6,
                       "sliding_window": 4096, "max_window_layers": 28,
                       "quantization_config": null, "auto_map": null,
                       "pruned_heads": {}, "num_experts": 0, )"),
              ElementsAre());
  EXPECT_THAT(notes(R"("quantization_config": {"quant_method": "awq"}, )"),
              ElementsAre(HasSubstr(
                  "quantization_config \"awq\": counted as not quantised")));
  for (const char* key : {"dtype", "torch_dtype"}) {
    EXPECT_THAT(notes(fmt::format("\"{}\": \"float32\", ", key).c_str()),
                ElementsAre(HasSubstr(
                    fmt::format("{} \"float32\": counted in bf16", key))));
  }
  EXPECT_THAT(
      notes(R"("architectures": ["Qwen3ForSequenceClassification"],
                       "auto_map": {"AutoModel": "m.Draft"}, )"),
      ElementsAre(HasSubstr("Qwen3ForSequenceClassification\"]: counted "
                            "as the family's causal model"),
                  HasSubstr("m.Draft\"}: counted as the family's")));
  EXPECT_THAT(
      notes(R"("dual_chunk_attention_config": {"chunk_size": 262144}, )"),
      ElementsAre(HasSubstr("counted as full attention")));
  // An unknown field may change the shape.
  EXPECT_THAT(
      notes(R"("draft_vocab_size": 32000, "v_head_dim": 96, )"),
      ElementsAre("not counted: draft_vocab_size 32000, v_head_dim 96"));
  EXPECT_THAT(notes(R"("a\u001bb": "c\nd", )"),
              ElementsAre("not counted: a?b \"c\\nd\""));
}

// Python's json module writes NaN and Infinity, which JSON does not have.
TEST(HuggingFaceConfig, NanAndInfinityAreNamed) {
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"x_scale": NaN})", "c"),
              StatusIs(kInvalidModel, HasSubstr("c: NaN at byte 13")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"limit": [0.0, Infinity]})", "c"),
              StatusIs(kInvalidModel, HasSubstr("c: Infinity at byte 17")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"limit": -Infinity})", "c"),
              StatusIs(kInvalidModel, HasSubstr("Infinity at byte 12")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"limit": 1e999})", "c"),
              StatusIs(kInvalidModel, HasSubstr("c: '1e999' is too large")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"limit": Nothing})", "c"),
              StatusIs(kInvalidModel, HasSubstr("not JSON: stopped at")));
}

TEST(HuggingFaceConfig, FaultsNameFileFieldAndValue) {
  EXPECT_THAT(ReadHuggingFaceConfig("[1]", "x.json"),
              StatusIs(kInvalidModel, HasSubstr("x.json: not a JSON object")));
  EXPECT_THAT(ReadHuggingFaceConfig("{", "x.json"),
              StatusIs(kInvalidModel, HasSubstr("x.json")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"model_type": "mamba"})", "x.json"),
              StatusIs(kInvalidModel, HasSubstr("'mamba' is none of 'llama'")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"model_type": 7})", "x.json"),
              StatusIs(kInvalidModel, HasSubstr("model_type")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"model_type": "gpt2"})", "x.json"),
              StatusIs(kInvalidModel, HasSubstr("n_layer: is missing")));
  EXPECT_THAT(
      ReadHuggingFaceConfig(R"({"model_type": "gpt2", "n_layer": "two"})", "c"),
      StatusIs(kInvalidModel,
               HasSubstr("n_layer: \"two\" is not a whole number")));
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"model_type": "gpt2", "n_layer": 2,
        "n_embd": 64, "n_head": 0, "vocab_size": 9})",
                                    "c"),
              StatusIs(kInvalidModel, HasSubstr("c: model: heads is 0")));
  // A number beyond int64 must not be read as another number.
  EXPECT_THAT(ReadHuggingFaceConfig(R"({"model_type": "gpt2",
        "n_layer": 18446744073709551615})",
                                    "c"),
              StatusIs(kInvalidModel,
                       HasSubstr("18446744073709551615 is not between")));
}

}  // namespace
}  // namespace sluice::planner::train
