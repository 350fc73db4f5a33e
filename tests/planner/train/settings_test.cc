// Strategies: which there are, which are refused.
#include "planner/train/settings.h"

#include <limits>

#include "planner/train/search.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalidSetting = absl::StatusCode::kInvalidArgument;

Request AskGpt(Method method, int64_t gpus, int64_t seq_len = 64 << 10) {
  return {.model = *FindModel("gpt-7b"),
          .hardware = *FindHardware("a800-80g"),
          .method = method,
          .gpus = gpus,
          .seq_len = seq_len};
}

ModelShape Llama405b() {
  ModelShape model = *FindModel("llama-70b");
  model.layers = 126;
  model.hidden = 16384;
  model.heads = 128;
  model.ffn = 53248;
  return model;
}

TEST(TrainSettings, EveryCandidateUsesAllGpusAndDividesHeadsLayersBatch) {
  for (const Method method : kMethods) {
    const Request request = AskGpt(method, 16);
    bool no_heads = true;
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto all,
                                Candidates(request, {}, &no_heads));
    EXPECT_FALSE(no_heads);
    EXPECT_FALSE(all.empty());
    for (const Settings& s : all) {
      EXPECT_EQ(s.gpus(), 16);
      EXPECT_EQ(32 % (s.tp * s.sp), 0);  // as 16 GPUs do
      EXPECT_EQ(32 % s.pp, 0);
      EXPECT_EQ(16 % s.dp, 0);
    }
  }
}

TEST(TrainSettings, WhatIsGivenIsKept) {
  GivenSettings given;
  given.tp = 4;
  given.alpha = 0.25;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best,
                              BestEstimate(AskGpt(Method::kMemo, 8), given));
  EXPECT_EQ(best.settings.tp, 4);
  EXPECT_EQ(best.settings.alpha, 0.25);
}

TEST(TrainSettings, HeadsThatDoNotDivideAreTheReason) {
  GivenSettings given;
  given.sp = 64;  // of 32 heads
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Estimate best, BestEstimate(AskGpt(Method::kUlysses, 64), given));
  EXPECT_FALSE(best.fits);
  EXPECT_EQ(best.reason, Reason::kHeads);
  EXPECT_GT(best.mfu, 0);
}

TEST(TrainSettings, TooFewSequencesAreTheReasonAndHowManyWouldDoIsSaid) {
  // 32 heads on 4,096 GPUs: 128 sequences at once, not the default's 16.
  Request request = AskGpt(Method::kSluice, 4096, 128 << 10);
  request.model = *FindModel("llama-8b");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
  EXPECT_FALSE(best.fits);
  EXPECT_EQ(best.reason, Reason::kBatch);
  EXPECT_EQ(best.batch_that_divides, 128);
  request.global_batch = best.batch_that_divides;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate more, BestEstimate(request, {}));
  EXPECT_TRUE(more.fits);
}

TEST(TrainSettings, EveryStageOfZeROIsSearchedForEveryMethod) {
  for (const Method method : kMethods) {
    Request request = AskGpt(method, 1024, 128 << 10);
    request.model = Llama405b();
    request.hardware = *FindHardware("h100-80g");
    request.global_batch = 128;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    for (const int64_t stage : {1, 2, 3}) {
      if (method == Method::kAlst && stage < 3) continue;  // not its recipe
      GivenSettings given;
      given.zero = stage;
      SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate one,
                                  BestEstimate(request, given));
      if (!one.fits) continue;
      EXPECT_TRUE(best.fits) << MethodName(method);
      EXPECT_LE(best.step_s, one.step_s) << MethodName(method) << stage;
    }
  }
}

// Wrong once: sharded weights were asked for only where nothing else fitted, so
// that a GPU with more memory was told a slower step.
TEST(TrainSettings, SluiceShardsWeightsWhereThatIsFaster) {
  Request request = AskGpt(Method::kSluice, 64, 128 << 10);
  request.model = *FindModel("llama-70b");
  request.hardware = *FindHardware("h200-141g");
  double before = std::numeric_limits<double>::infinity();
  for (const double gigabytes : {80, 141, 200, 400, 1600}) {
    request.hardware.memory_bytes = gigabytes * 1e9;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    EXPECT_TRUE(best.fits);
    EXPECT_LE(best.step_s, before) << gigabytes;
    before = best.step_s;
  }
  // Nothing can be sharded over one GPU.
  request = AskGpt(Method::kSluice, 1, 64 << 10);
  request.model = *FindModel("llama-1b");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate one, BestEstimate(request, {}));
  EXPECT_TRUE(one.fits);
  EXPECT_EQ(one.settings.zero, 1);
}

TEST(TrainSettings, PipelineStagesNeedNotDivideTheLayers) {
  Request request = AskGpt(Method::kMegatron, 8);
  request.model.layers = 30;
  GivenSettings given;
  given.pp = 4;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate uneven,
                              BestEstimate(request, given));
  EXPECT_EQ(uneven.settings.pp, 4);
  // The fullest stage has 8 of 30 layers, as of 32.
  request.model.layers = 32;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate even,
                              BestEstimate(request, given));
  EXPECT_NEAR(uneven.step_s, even.step_s, 1e-9 * even.step_s);
  GivenSettings many;
  many.pp = 64;
  EXPECT_THAT(BestEstimate(AskGpt(Method::kMegatron, 64), many),
              StatusIs(kInvalidSetting, HasSubstr("pp be at most 32")));
}

TEST(TrainSettings, FpdtTakesUnevenHeadsAndWaitsForTheFullestRank) {
  Request request = AskGpt(Method::kFpdt, 16);
  request.model = *FindModel("gpt-13b");  // 40 heads: 3 on some, 2 on others
  request.global_batch = 1;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate uneven, BestEstimate(request, {}));
  EXPECT_NE(uneven.reason, Reason::kHeads);
  EXPECT_EQ(uneven.settings.sp, 16);
  request.gpus = 8;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate even, BestEstimate(request, {}));
  EXPECT_NEAR(uneven.breakdown.attention / even.breakdown.attention,
              3.0 * 16 / 40 / 2, 1e-9);
}

TEST(TrainSettings, WhatNoStrategyCanBeIsBadInput) {
  const auto refused = [](const Request& request, const GivenSettings& given,
                          const char* what) {
    EXPECT_THAT(BestEstimate(request, given),
                StatusIs(kInvalidSetting, HasSubstr(what)));
  };
  GivenSettings three;
  three.tp = 3;
  refused(AskGpt(Method::kMegatron, 8), three, "use all 8 GPUs");
  GivenSettings tensor;
  tensor.tp = 2;
  refused(AskGpt(Method::kSluice, 8), tensor,
          "--tp is 2; method sluice has none");
  GivenSettings alpha;
  alpha.alpha = 0.5;
  refused(AskGpt(Method::kUlysses, 8), alpha, "--alpha: method ulysses");
  alpha.alpha = 1.5;
  refused(AskGpt(Method::kMemo, 8), alpha, "--alpha is 1.5");
  GivenSettings chunk;
  chunk.chunk = 1024;
  refused(AskGpt(Method::kMemo, 8), chunk, "--chunk: method memo");
  chunk.chunk = 1;
  refused(AskGpt(Method::kSluice, 8), chunk, "--chunk is 1; it must be 128 to");
  refused(AskGpt(Method::kMemo, 0), {}, "--gpus is 0");
  refused(AskGpt(Method::kMemo, 8, 0), {}, "--seq-len is 0");
  GivenSettings zero;
  zero.zero = 4;
  refused(AskGpt(Method::kSluice, 8), zero, "--zero is 4; it must be 0 to 3");
}

TEST(TrainSettings, TokensAreReadAndWrittenInBinaryUnits) {
  EXPECT_EQ(*ParseTokens("1M"), 1 << 20);
  EXPECT_EQ(*ParseTokens("640K"), 640 << 10);
  EXPECT_EQ(*ParseTokens("131072"), 131072);
  EXPECT_EQ(TokensText(1 << 20), "1M");
  EXPECT_EQ(TokensText(1152 << 10), "1152K");
  EXPECT_EQ(TokensText(1000), "1000");
  EXPECT_EQ(TokensText(0), "0") << "and not 0M";
  EXPECT_EQ(*ParseTokens("1.5M"), 3 << 19);
  for (const char* wrong : {"", "K", "-1", "0", "1.3K", "1G", "12 K", "2048M",
                            "99999999999999999999"}) {
    EXPECT_THAT(ParseTokens(wrong), StatusIs(kInvalidSetting)) << wrong;
  }
}

}  // namespace
}  // namespace sluice::planner::train
