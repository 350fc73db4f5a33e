#include "planner/stream/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::stream {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const ModelShape& shape, int64_t ranks) {
  return std::string(shape.ValidateStream(ranks).message());
}

TEST(ModelShape, AcceptsItsDefaults) {
  EXPECT_TRUE(ModelShape{}.ValidateStream(2).ok());
}

TEST(ModelShape, RefusalsNameValueAndLimit) {
  ModelShape shape{.heads = 4, .kv_heads = 3};
  EXPECT_THAT(Refusal(shape, 2), HasSubstr("--heads 4 does not divide by "
                                           "--kv-heads 3"));
  shape.kv_heads = 2;
  EXPECT_EQ(Refusal(shape, 3), "");
  EXPECT_THAT(std::string(shape.ValidateWholeHeads(3).message()),
              HasSubstr("--ranks 3"));
  shape.hidden = 130;
  EXPECT_THAT(Refusal(shape, 2), HasSubstr("--hidden 130"));
  shape.hidden = 12;
  EXPECT_THAT(Refusal(shape, 2), HasSubstr("must be even"));
  EXPECT_THAT(Refusal({.rope = Rope{.theta = 0}}, 2), HasSubstr("rope_theta"));
  shape = Gpt(shape);
  EXPECT_THAT(Refusal(shape, 2), HasSubstr("max_positions is 0"));
  shape.layers = 0;
  EXPECT_THAT(Refusal(shape, 2), HasSubstr("--layers is 0"));
}

TEST(ModelShape, AMixtureOfExpertsHasOneToAllExpertsActive) {
  const auto fine = [](int64_t experts, int64_t active) {
    return ModelShape{.experts = experts, .active_experts = active}
        .Validate()
        .ok();
  };
  EXPECT_TRUE(fine(0, 0));
  EXPECT_TRUE(fine(8, 1));
  EXPECT_TRUE(fine(8, 8));
  EXPECT_FALSE(fine(8, 0));
  EXPECT_FALSE(fine(8, 9));
  EXPECT_FALSE(fine(0, 1));
  EXPECT_FALSE(fine(-1, 0));
}

TEST(ModelShape, CountsTheParametersOfGpt2AndLlama7B) {
  const ModelShape gpt2 = Gpt({.layers = 12,
                               .hidden = 768,
                               .heads = 12,
                               .kv_heads = 12,
                               .ffn = 3072,
                               .vocab = 50257,
                               .max_positions = 1024});
  EXPECT_EQ(gpt2.trained_parameters(), 124439808);
  const ModelShape llama{.layers = 32,
                         .hidden = 4096,
                         .heads = 32,
                         .kv_heads = 32,
                         .ffn = 11008,
                         .vocab = 32000};
  EXPECT_EQ(llama.trained_parameters(), 6738415616);
}

TEST(ModelShape, TraitsThatTheStreamDoesNotRunAreRefusedByName) {
  const auto refusal = [](auto change) {
    ModelShape shape;
    change(shape);
    return Refusal(shape, 2);
  };
  EXPECT_THAT(refusal([](ModelShape& m) { m.query_key_norm = true; }),
              HasSubstr("norms of q and k"));
  EXPECT_THAT(refusal([](ModelShape& m) { m.parallel_residual = true; }),
              HasSubstr("parallel residual"));
  EXPECT_THAT(refusal([](ModelShape& m) { m.rope->scaling = 8; }),
              HasSubstr("scaled RoPE"));
  EXPECT_THAT(refusal([](ModelShape& m) { m.rope->partial = 0.25; }),
              HasSubstr("partial RoPE"));
  EXPECT_THAT(refusal([](ModelShape& m) { m.biases.ffn = true; }),
              HasSubstr("gate with a bias"));
  EXPECT_THAT(refusal([](ModelShape& m) { m.norm = NormKind::kLayerNorm; }),
              HasSubstr("LayerNorm without a bias"));
}

// Qwen 3's heads are wider than hidden / heads.
TEST(ModelShape, AnExplicitHeadSizeNeedNotDivideHidden) {
  ModelShape shape{.hidden = 10, .heads = 4, .kv_heads = 2, .head_size = 6};
  EXPECT_EQ(Refusal(shape, 2), "");
  EXPECT_EQ(shape.query_width(), 24);
  EXPECT_EQ(shape.key_width(), 12);
}

}  // namespace
}  // namespace sluice::stream
