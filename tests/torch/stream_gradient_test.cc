// Tests that streamed steps have the gradients of plain autograd, in each kind
// of shape that a user may choose.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>

#include <cmath>
#include <ostream>
#include <random>
#include <string>

#include "tests/torch/initial_tensors.h"
#include "tests/torch/stream_fixture.h"
#include "tests/torch/stream_oracle.h"

namespace sluice::runtime {
namespace {

stream::ModelShape Llama(int64_t heads = 4, int64_t kv_heads = 4) {
  return stream::Llama({.layers = 2,
                        .hidden = heads * 8,
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .ffn = 44,
                        .vocab = 50});
}
stream::ModelShape Gpt(int64_t heads = 4) {
  return stream::Gpt({.layers = 2,
                      .hidden = heads * 8,
                      .heads = heads,
                      .kv_heads = heads,
                      .ffn = 48,
                      .vocab = 50,
                      .max_positions = 200});
}

struct Named {
  const char* name;
  StepCase c;

  friend void PrintTo(const Named& named, std::ostream* out) {
    const StepCase& c = named.c;
    *out << named.name << ": " << c.seq_len << " tokens, chunks of " << c.chunk
         << ", " << c.ranks << " ranks, alpha " << c.stream.alpha << ", depth "
         << c.stream.prefetch_depth;
  }
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

stream::StreamOptions Alpha(double alpha, int depth = 2) {
  return {.alpha = alpha, .prefetch_depth = depth};
}

stream::StreamOptions QueriesOuter(double alpha, int depth = 2) {
  return {.alpha = alpha,
          .prefetch_depth = depth,
          .order = stream::BackwardOrder::kQueriesOuter};
}
stream::StreamOptions Rounded(stream::StreamOptions options) {
  options.round_output = true;
  return options;
}

// Returns a step with dv resident. dk is copied out over a slow link, so its
// slot stays in use for long.
StepCase OneOfTwoSumsResident() {
  StepCase c{Llama(4, 2), 71, 16, 1, QueriesOuter(1)};
  c.stream.fractions = {{"value_gradient", {.keep = 1, .swap = 0}}};
  c.out_speed = 4e6;
  return c;
}

INSTANTIATE_TEST_SUITE_P(
    QueriesOuter, StreamedStepGradient,
    ::testing::Values(
        Named{"OneOfTwoSumsResident", OneOfTwoSumsResident()},
        Named{"OneChunk", {Llama(), 40, 64, 1, QueriesOuter(1)}},
        Named{"WholeChunks", {Llama(), 64, 16, 1, QueriesOuter(1)}},
        Named{"Tail", {Llama(4, 2), 71, 16, 1, QueriesOuter(0.5)}},
        Named{"TailOfOneToken", {Llama(4, 1), 65, 16, 1, QueriesOuter(0, 3)}},
        Named{"ChunksOfOneToken", {Llama(), 5, 1, 1, QueriesOuter(1)}},
        Named{"DepthOne", {Llama(4, 2), 71, 16, 1, QueriesOuter(1, 1)}},
        Named{"DepthNine", {Llama(4, 2), 71, 16, 1, QueriesOuter(0.5, 9)}},
        Named{"Gpt", {Gpt(), 71, 16, 1, QueriesOuter(1)}},
        Named{"TwoTail", {Llama(), 71, 16, 2, QueriesOuter(0.5)}},
        Named{"ARankWithoutTail", {Llama(), 65, 16, 2, QueriesOuter(0.5)}},
        Named{"FewerKvHeads", {Llama(4, 2), 71, 16, 4, QueriesOuter(0.5)}},
        Named{"GroupsThatDoNotAlign",
              {Llama(12, 3), 71, 16, 4, QueriesOuter(0.5)}},
        Named{"CausalInHalves", {Llama(), 900, 400, 2, QueriesOuter(0.5)}}),
    [](const auto& info) { return std::string(info.param.name); });

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
                      Named{"CausalBlocksInHalves", {Llama(4, 2), 900, 400}},
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
        Named{"CausalBlocksInHalves", {Llama(), 900, 400, 2, Alpha(0.5)}},
        Named{"GptTwo", {Gpt(), 71, 16, 2, Alpha(0.5)}},
        Named{"GptFour", {Gpt(), 66, 16, 4, Alpha(1)}}),
    [](const auto& info) { return std::string(info.param.name); });

// Returns `c` with the first `chunks` chunks run again, in groups of `layers`
// layers. The number of layers is the largest of `all`, 3 and `layers` + 1.
StepCase Again(StepCase c, int64_t chunks, int64_t layers, int64_t all = 0) {
  c.model.layers = std::max<int64_t>({all, 3, layers + 1});
  c.stream.alpha = 0;
  c.stream.rerun_chunks = chunks;
  c.stream.rerun_layers = layers;
  return c;
}

// Returns `c` with the last rows of three classes, a fraction `kept`, resident
// in HBM.
StepCase WithKept(StepCase c, double kept) {
  for (const char* name : {"attention_output", "lse", "layer_input"}) {
    c.stream.fractions[name] = {.keep = kept, .swap = 1 - kept};
  }
  return c;
}

INSTANTIATE_TEST_SUITE_P(
    RunAgain, StreamedStepGradient,
    ::testing::Values(
        Named{"Half", Again({Llama(4, 2), 71, 16}, 2, 1)},
        Named{"AllByTwo", Again({Llama(), 80, 16}, 5, 2, 5)},
        Named{"QueriesOuterByFour",
              Again({Llama(4, 2), 71, 16, 1, QueriesOuter(0)}, 3, 4)},
        Named{"TwoByTwo", Again({Llama(4, 2), 71, 13, 2}, 3, 2)},
        Named{"FirstAgainLastKept",
              WithKept(Again({Llama(4, 2), 100, 16}, 2, 2), 0.4)}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    RunAgainWider, StreamedStepGradient,
    ::testing::Values(
        Named{"OneChunk", Again({Llama(), 71, 16}, 1, 1)},
        Named{"All", Again({Llama(4, 2), 71, 16}, 5, 1)},
        Named{"TheOnlyChunk", Again({Llama(), 14, 16}, 1, 1)},
        Named{"HalfByTwo", Again({Llama(4, 2), 71, 16}, 2, 2, 5)},
        Named{"HalfByFour", Again({Llama(4, 2), 71, 13}, 3, 4, 7)},
        Named{"GptByTwo", Again({Gpt(), 71, 16}, 3, 2)},
        Named{"Ahead", Again({Llama(), 71, 16, 1, Alpha(0, 4)}, 3, 2)},
        Named{"QueriesOuter",
              Again({Llama(4, 2), 71, 16, 1, QueriesOuter(0)}, 2, 1)},
        Named{"QueriesOuterAllByFour",
              Again({Llama(4, 2), 71, 16, 1, QueriesOuter(0)}, 5, 4)},
        Named{"TwoRanks", Again({Llama(), 71, 16, 2}, 2, 1)},
        Named{"ThreeRanks", Again({Llama(12, 12), 77, 16, 3}, 5, 2)},
        Named{"FourByFour",
              Again({Llama(4, 2), 71, 16, 4, QueriesOuter(0)}, 3, 4)},
        Named{"FourAll", Again({Gpt(), 66, 16, 4}, 5, 1)},
        Named{"LastChunksKept",
              WithKept({Llama(4, 2), 71, 16, 1, Alpha(0.5)}, 0.5)},
        Named{"LastChunksKeptQueriesOuter",
              WithKept({Llama(), 71, 16, 2, QueriesOuter(1)}, 0.7)},
        Named{"FirstAgainOthersKept",
              WithKept(Again({Llama(4, 2), 100, 16, 2}, 3, 1), 1)},
        Named{
            "FirstAgainLastKeptQueriesOuter",
            WithKept(Again({Gpt(), 100, 13, 2, QueriesOuter(0)}, 2, 4), 0.5)}),
    [](const auto& info) { return std::string(info.param.name); });

// More ranks than heads, or a number of ranks that does not divide the heads.
INSTANTIATE_TEST_SUITE_P(
    RowParts, StreamedStepGradient,
    ::testing::Values(
        Named{"TwoOfThreeHeads", {Llama(3, 3), 71, 16, 2, Alpha(0.5)}},
        Named{"TwoOfOneHead", {Llama(1, 1), 71, 13, 2, QueriesOuter(0)}},
        Named{"ThreeOfTwoHeads", {Llama(2, 1), 77, 17, 3, Alpha(0.4)}},
        Named{"FourOfTwoHeads", {Llama(2, 1), 71, 15, 4, Alpha(0.25)}},
        Named{"FourOfSixHeads", {Llama(6, 2), 71, 16, 4, QueriesOuter(0.5)}},
        Named{"GroupsThatDoNotAlign", {Llama(18, 3), 71, 16, 4, Alpha(0.5)}},
        Named{"FourTailOfOne", {Llama(2, 2), 65, 16, 4, Alpha(0)}},
        Named{"FourTailOfOneQueriesOuter",
              {Llama(2, 2), 65, 16, 4, QueriesOuter(0)}},
        Named{"ATailOfOneThatRoundsAway",
              {Llama(2, 2), 65, 16, 4, QueriesOuter(0.6)}},
        Named{"FewerTokensThanRanks", {Llama(2, 1), 3, 16, 4, Alpha(0.5)}},
        Named{"FewerTokensThanRanksQueriesOuter",
              {Llama(2, 1), 1, 16, 4, QueriesOuter(0.5)}},
        Named{"OneChunk", {Llama(3, 3), 40, 64, 2, Alpha(1, 1)}},
        Named{"CausalBlocksInHalves", {Llama(2, 1), 1700, 1200, 4}},
        Named{"Gpt", {Gpt(3), 71, 16, 2, Alpha(0.5)}},
        Named{"GptQueriesOuter", {Gpt(2), 66, 13, 4, QueriesOuter(1)}},
        Named{"HalfAgain", Again({Llama(2, 1), 71, 15, 4}, 3, 1)},
        Named{"AllAgainByTwo",
              Again({Llama(6, 2), 71, 16, 4, QueriesOuter(0)}, 5, 2)},
        Named{"FirstAgainByTwoLastKept",
              WithKept(Again({Llama(3, 3), 100, 13, 2}, 4, 2), 0.4)},
        Named{"LastChunksKept",
              WithKept({Llama(2, 1), 71, 16, 4, QueriesOuter(0.5)}, 0.6)}),
    [](const auto& info) { return std::string(info.param.name); });

// Returns fractions of most free classes, drawn by `seed`; some keep rows.
stream::StreamOptions Mixed(const stream::ModelShape& model, uint64_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&random] { return static_cast<double>(random() % 9) / 8; };
  stream::StreamOptions options{
      .alpha = draw(),
      .prefetch_depth = 1 + static_cast<int>(random() % 3),
      .ffn_chunk_rows = static_cast<int64_t>(random() % 6)};
  for (const stream::Class which : stream::kFreeClasses) {
    const stream::ClassTraits& c = stream::Traits(which);
    if (!c.of(model)) continue;
    stream::ClassFractions f{0, draw()};
    const bool rows = c.keep == stream::Keep::kRows;
    if (rows && random() % 2 == 0) f.keep = (1 - f.swap) * draw();
    if (random() % 8 != 0) options.fractions[c.name] = f;
  }
  options.loss_chunk_rows = static_cast<int64_t>(random() % 40);
  return options;
}

// Returns Mixed() with some classes resident in HBM. Every fourth seed keeps
// everything.
stream::StreamOptions MixedResident(const stream::ModelShape& model,
                                    uint64_t seed) {
  stream::StreamOptions options = Mixed(model, seed);
  if (seed % 4 == 0) {
    options.fractions = stream::KeepEverything(model);
    return options;
  }
  std::mt19937 random(2000 + seed);
  if (random() % 2 == 0) options.order = stream::BackwardOrder::kQueriesOuter;
  for (const stream::ClassTraits& c : stream::kClasses) {
    if (c.keep == stream::Keep::kWhole && random() % 2 == 0) {
      options.fractions[c.name] = {.keep = 1, .swap = 0};
    }
  }
  return options;
}

// Returns an odd shape with 1 to 4 ranks, often with grouped heads and a tail.
StepCase DrawCase(uint64_t seed) {
  std::mt19937 random(1000 + seed);
  const int ranks = 1 + static_cast<int>(random() % 4);
  // With every third seed, ranks may share rows, too.
  const int64_t heads = seed % 3 == 1 ? 2 : ranks == 3 ? 12 : 4;
  StepCase c{.ranks = ranks};
  c.model = seed % 3 == 0 ? Gpt(heads)
                          : Llama(heads, random() % 2 == 0 ? heads : heads / 2);
  c.chunk = 5 + static_cast<int64_t>(random() % 14);
  c.seq_len = c.chunk * 2 + static_cast<int64_t>(random() % 40);
  return c;
}

void ExpectGradientsOfAutograd(const StepCase& c, uint64_t seed) {
  const StepData data = MakeStepData(c, seed);
  const OracleResult expected =
      RunOracle(c.model, data.weights, data.tokens, data.labels, data.count);
  StepOutcome got = RunStep(c, data, /*steps=*/2);
  EXPECT_NEAR(got.loss_sum / expected.loss_sum, 1, 1e-6);
  const GradientError error =
      CompareGradients(c.model, got.gradients, expected.gradients);
  EXPECT_LE(error.worst, 1e-4) << error.parameter;
}

class StreamedStepFractions : public ::testing::TestWithParam<int> {};

TEST_P(StreamedStepFractions, HaveTheGradientsOfPlainAutograd) {
  const auto seed = static_cast<uint64_t>(GetParam());
  StepCase c = DrawCase(seed);
  c.stream = Mixed(c.model, seed);
  ExpectGradientsOfAutograd(c, seed);
}

TEST_P(StreamedStepFractions, HaveTheGradientsOfAutogradIfClassesAreResident) {
  const auto seed = static_cast<uint64_t>(GetParam());
  StepCase c = DrawCase(seed);
  c.stream = MixedResident(c.model, seed);
  ExpectGradientsOfAutograd(c, seed);
}

INSTANTIATE_TEST_SUITE_P(Drawn, StreamedStepFractions, ::testing::Range(0, 24));

TEST(StreamedStep, MakesNoHostSynchroniseCall) {
  const StepCase c{Llama(), 71, 16, 1, Alpha(0.5)};
  const StepOutcome got = RunStep(c, MakeStepData(c, 3));
  EXPECT_GT(got.after.copies, got.before.copies);
  EXPECT_EQ(got.after.stream_synchronize, got.before.stream_synchronize);
  EXPECT_EQ(got.after.event_synchronize, got.before.event_synchronize);
}

// The link is so slow that every copy is late; the numbers must not change.
TEST(StreamedStep, HasTheSameGradientsOverASlowLink) {
  if (OnCuda()) GTEST_SKIP() << "only sim has links of a set speed";
  StepCase c{Llama(), 71, 16, 1, Alpha(0.5, 3)};
  const StepData data = MakeStepData(c, 5);
  StepOutcome fast = RunStep(c, data);
  c.in_speed = c.out_speed = 1e6;
  StepOutcome slow = RunStep(c, data);
  EXPECT_GT(slow.copies.stall, absl::Milliseconds(20));
  const auto a = NamedTensors(c.model, fast.gradients);
  const auto b = NamedTensors(c.model, slow.gradients);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].tensor->equal(*b[i].tensor)) << a[i].name;
  }
}

// A GPU's kernels round o when they read it.
TEST(StreamedStep, ARoundedOutputChangesNoBitOnAGpu) {
  if (!OnCuda()) GTEST_SKIP() << "sim's blocks read o in fp32";
  for (const stream::StreamOptions& stream : {Alpha(0.5), QueriesOuter(0)}) {
    StepCase c{Llama(4, 2), 71, 16, 2, stream};
    c.dtype = at::kBFloat16;
    const StepData data = MakeStepData(c, 5);
    StepOutcome whole = RunStep(c, data);
    c.stream.round_output = true;
    StepOutcome rounded = RunStep(c, data);
    EXPECT_EQ(whole.loss_sum, rounded.loss_sum);
    const auto a = NamedTensors(c.model, whole.gradients);
    const auto b = NamedTensors(c.model, rounded.gradients);
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].tensor->equal(*b[i].tensor)) << a[i].name;
    }
  }
}

TEST(StreamedStepOracle, CountsANaNAsTheWorstErrorEvenIfErrorsFollow) {
  const stream::ModelShape model = Llama();
  ModelTensors gradients = ZeroTensors(model, at::kFloat, at::kCPU);
  const auto named = NamedTensors(model, gradients);
  std::vector<at::Tensor> expected;
  for (const NamedTensor& n : named) {
    expected.push_back(at::ones_like(*n.tensor, at::kDouble));
  }
  named[1].tensor->fill_(std::nan(""));
  const GradientError error = CompareGradients(model, gradients, expected);
  EXPECT_TRUE(std::isnan(error.worst));
  EXPECT_EQ(error.parameter, named[1].name);
}

class StreamedStepInBf16 : public ::testing::TestWithParam<Named> {};

TEST_P(StreamedStepInBf16, IsAboutAsExactAsPlainTorch) {
  StepCase c = GetParam().c;
  c.dtype = at::kBFloat16;
  const StepData data = MakeStepData(c, 23);
  const auto oracle = [&](at::ScalarType dtype) {
    return RunOracle(c.model, data.weights, data.tokens, data.labels,
                     data.count, dtype);
  };
  const OracleResult expected = oracle(at::kDouble);
  const OracleResult plain = oracle(at::kBFloat16);
  ModelTensors plain_gradients = ZeroTensors(c.model, at::kDouble, at::kCPU);
  const auto named = NamedTensors(c.model, plain_gradients);
  for (size_t i = 0; i < named.size(); ++i) {
    *named[i].tensor = plain.gradients[i];
  }
  const GradientError theirs =
      CompareGradients(c.model, plain_gradients, expected.gradients);
  StepOutcome got = RunStep(c, data);
  const GradientError ours =
      CompareGradients(c.model, got.gradients, expected.gradients);
  EXPECT_LE(ours.scaled, 1.5 * theirs.scaled) << ours.parameter;
  EXPECT_LE(ours.unscaled, 1.5e-3);  // the limit of `check`
  EXPECT_GT(ours.worst, 0);
  EXPECT_FALSE(std::isnan(ours.worst));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, StreamedStepInBf16,
    ::testing::Values(
        Named{"OneRank", {Llama(), 71, 16, 1, Alpha(0.5)}},
        Named{"Grouped", {Llama(4, 2), 71, 16, 2, Alpha(0.5)}},
        Named{"Gpt", {Gpt(), 71, 16, 1, Alpha(1)}},
        Named{"GptManyChunks", {Gpt(), 63, 5, 1, Alpha(1)}},
        Named{"RoundedOutput", {Llama(4, 2), 71, 16, 2, Rounded(Alpha(0.5))}},
        Named{"RoundedOutputQueriesOuter",
              {Llama(4, 2), 71, 13, 2, Rounded(QueriesOuter(0.25))}},
        Named{"RoundedOutputGpt", {Gpt(), 63, 5, 1, Rounded(Alpha(1))}},
        Named{"TailOfOneToken", {Llama(4, 2), 65, 16}},
        Named{"QueriesOuter", {Llama(4, 2), 71, 13, 2, QueriesOuter(0.25)}},
        Named{"ThreeOfTwelve", {Llama(12, 12), 77, 16, 3, Alpha(0.4)}},
        Named{"RowParts", {Llama(6, 2), 71, 16, 4, Alpha(0.5)}},
        Named{"RowPartsRoundedOutput",
              {Llama(2, 1), 71, 15, 4, Rounded(QueriesOuter(0))}},
        Named{"GptFour", {Gpt(), 66, 16, 4, Alpha(0)}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::runtime
