#include "client/torch/math/model_tensors.h"

#include <ATen/ops/std.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/torch/initial_tensors.h"

namespace sluice::runtime {
namespace {

const stream::ModelShape kGpt = stream::Gpt({.layers = 3,
                                             .hidden = 32,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .ffn = 64,
                                             .vocab = 50,
                                             .max_positions = 16});
const stream::ModelShape kLlama{.layers = 3,
                                .hidden = 32,
                                .heads = 4,
                                .kv_heads = 2,
                                .ffn = 64,
                                .vocab = 50};

TEST(ModelTensors, NamesShapesAndParameterCountAgree) {
  for (const stream::ModelShape& config : {kGpt, kLlama}) {
    ModelTensors tensors = ZeroTensors(config, at::kFloat, at::kCPU);
    const auto named = NamedTensors(config, tensors);
    const auto shapes = TensorShapes(config);
    ASSERT_EQ(named.size(), shapes.size());
    int64_t parameters = 0;
    for (size_t i = 0; i < named.size(); ++i) {
      EXPECT_EQ(named[i].tensor->sizes().vec(), shapes[i]) << named[i].name;
      parameters += named[i].tensor->numel();
    }
    EXPECT_EQ(parameters, config.trained_parameters());
  }
}

TEST(ModelTensors, GptTiesItsHeadAndLlamaDoesNot) {
  const ModelTensors gpt = ZeroTensors(kGpt, at::kFloat, at::kCPU);
  EXPECT_TRUE(gpt.logits_weight().is_same(gpt.embed));
  const ModelTensors llama = ZeroTensors(kLlama, at::kFloat, at::kCPU);
  EXPECT_TRUE(llama.logits_weight().is_same(llama.head));
}

TEST(ModelTensors, ASeedGivesTheSameWeightsInEveryType) {
  ModelTensors fp32 = InitialTensors(kGpt, at::kFloat, at::kCPU, 7);
  ModelTensors bf16 = InitialTensors(kGpt, at::kBFloat16, at::kCPU, 7);
  ModelTensors other = InitialTensors(kGpt, at::kFloat, at::kCPU, 8);
  const auto a = NamedTensors(kGpt, fp32), b = NamedTensors(kGpt, bf16);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].tensor->to(at::kBFloat16).equal(*b[i].tensor))
        << a[i].name;
  }
  EXPECT_FALSE(fp32.embed.equal(other.embed));
  EXPECT_EQ(fp32.layers[1].norm1_weight.sum().item<double>(), 32);
  EXPECT_EQ(fp32.layers[1].q_bias.abs().sum().item<double>(), 0);
  EXPECT_NEAR(fp32.embed.std().item<double>(), 0.02, 0.002);
  EXPECT_NEAR(fp32.layers[1].down_weight.std().item<double>(),
              0.02 / std::sqrt(6.0), 0.001);
}

}  // namespace
}  // namespace sluice::runtime
