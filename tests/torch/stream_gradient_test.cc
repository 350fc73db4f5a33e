// Every shape a user may give has the gradients of plain autograd.
#include <ATen/Parallel.h>

#include <cmath>
#include <string>

#include "tests/torch/stream_fixture.h"
#include "tests/torch/stream_oracle.h"

namespace sluice::runtime {
namespace {

ModelConfig Llama(int64_t heads = 4, int64_t kv_heads = 4) {
  return {.arch = Arch::kLlama,
          .layers = 2,
          .hidden = heads * 8,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = 44,
          .vocab = 50};
}
ModelConfig Gpt(int64_t heads = 4) {
  return {.arch = Arch::kGpt,
          .layers = 2,
          .hidden = heads * 8,
          .heads = heads,
          .kv_heads = heads,
          .ffn = 48,
          .vocab = 50,
          .max_positions = 200};
}

struct Named {
  const char* name;
  StepCase c;
};

class StreamedStepGradient : public ::testing::TestWithParam<Named> {};

TEST_P(StreamedStepGradient, IsThatOfPlainAutograd) {
  const StepCase& c = GetParam().c;
  const StepData data = MakeStepData(c, 17);
  const OracleResult expected =
      RunOracle(c.model, data.weights, data.tokens, data.labels, data.count);
  StepOutcome got = RunStep(c, data, /*steps=*/2);
  EXPECT_EQ(got.count, data.count);
  EXPECT_NEAR(got.loss_sum / expected.loss_sum, 1, 1e-6);
  const GradientError error =
      CompareGradients(c.model, got.gradients, expected.gradients);
  EXPECT_LE(error.worst, 1e-4) << error.parameter;
  EXPECT_GT(error.worst, 0);  // fp32 against fp64: never exactly equal
}

StreamOptions Alpha(double alpha, int depth = 2) {
  return {.alpha = alpha, .prefetch_depth = depth};
}

INSTANTIATE_TEST_SUITE_P(
    OneRank, StreamedStepGradient,
    ::testing::Values(Named{"OneChunk", {Llama(), 40, 64}},
                      Named{"WholeChunks", {Llama(), 64, 16}},
                      Named{"Tail", {Llama(), 71, 16}},
                      Named{"TailOfOneToken", {Llama(), 65, 16}},
                      Named{"ChunksOfOneToken", {Llama(), 5, 1}},
                      Named{"OneToken", {Llama(), 1, 16}},
                      Named{"DepthOne", {Llama(), 71, 16, 1, Alpha(1, 1)}},
                      Named{"DepthFour", {Llama(), 71, 16, 1, Alpha(1, 4)}},
                      Named{"DepthNine", {Llama(), 71, 16, 1, Alpha(0.5, 9)}},
                      Named{"AlphaZero", {Llama(), 71, 16, 1, Alpha(0)}},
                      Named{"AlphaThird", {Llama(), 71, 16, 1, Alpha(1.0 / 3)}},
                      Named{"AlphaMost", {Llama(), 71, 16, 1, Alpha(0.9, 3)}},
                      Named{"Grouped", {Llama(4, 2), 71, 16, 1, Alpha(0.5)}},
                      Named{"OneKvHead", {Llama(4, 1), 71, 16, 1, Alpha(0.5)}},
                      Named{"Gpt", {Gpt(), 71, 16}},
                      Named{"GptAlphaHalf", {Gpt(), 71, 16, 1, Alpha(0.5)}}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Ranks, StreamedStepGradient,
    ::testing::Values(
        Named{"Two", {Llama(), 64, 16, 2}},
        Named{"TwoTail", {Llama(), 71, 16, 2, Alpha(0.5)}},
        Named{"ARankWithoutTail", {Llama(), 65, 16, 2, Alpha(0.5)}},
        Named{"OddChunk", {Llama(), 71, 13, 2, Alpha(0.7)}},
        Named{"ThreeOfTwelve", {Llama(12, 12), 77, 16, 3, Alpha(0.4)}},
        Named{"Four", {Llama(), 71, 16, 4, Alpha(0.25)}},
        Named{"FourTailOfOne", {Llama(), 65, 16, 4, Alpha(0)}},
        Named{"FewerKvHeadsThanRanks", {Llama(4, 2), 71, 16, 4, Alpha(0.5)}},
        Named{"GroupsThatDoNotAlign", {Llama(12, 3), 71, 16, 4, Alpha(0.5)}},
        Named{"FewerTokensThanRanks", {Llama(), 3, 16, 4, Alpha(0.5)}},
        Named{"GptTwo", {Gpt(), 71, 16, 2, Alpha(0.5)}},
        Named{"GptFour", {Gpt(), 66, 16, 4, Alpha(1)}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::runtime
