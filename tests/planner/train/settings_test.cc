// Tests which strategies are tried, chosen and refused.
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

TEST(TrainSettings, EveryCandidateDividesHeadsAndBatchAndTheFirstUsesAllGpus) {
  for (const Method method : kMethods) {
    const Request request = AskGpt(method, 16);
    bool no_heads = true;
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto all,
                                Candidates(request, {}, &no_heads));
    EXPECT_FALSE(no_heads);
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all.front().gpus(), 16);
    EXPECT_EQ(all.back().gpus(), 1);
    for (const Settings& s : all) {
      const bool rows_are_cut =
          method == Method::kSluice && s.engine == Engine::kTrainer;
      if (method != Method::kFpdt && !rows_are_cut) {
        EXPECT_EQ(32 % (s.tp * s.sp), 0);
      }
      EXPECT_LE(s.pp, 32);
      EXPECT_EQ(16 % s.dp, 0);
    }
  }
}

// The trainer has neither FSDP2 nor data parallelism. Engine python keeps no
// chunks in HBM.
TEST(TrainSettings, EachEngineIsAskedOnlyForWhatItHas) {
  for (const char* model : {"llama-8b", "llama-70b", "qwen2.5-7b"}) {
    for (const int64_t gpus : {1, 6, 8, 32}) {
      for (const int64_t tokens : {32 << 10, 1 << 20, 4 << 20}) {
        for (const Engine engine : kEngines) {
          Request request = AskGpt(Method::kSluice, gpus, tokens);
          request.model = *FindModel(model);
          request.hardware = *FindHardware("h100-80g");
          SLUICE_ASSERT_OK_AND_ASSIGN(
              const Estimate best, BestEstimate(request, {.engine = engine}));
          const Settings& s = best.settings;
          EXPECT_EQ(s.engine, engine);
          if (engine == Engine::kTrainer) {
            EXPECT_EQ(s.dp, 1);
            EXPECT_EQ(s.zero, 1);
          } else {
            EXPECT_EQ(s.zero, s.gpus() == 1 ? 1 : 3);
            EXPECT_EQ(s.alpha + s.kept, 0);
            EXPECT_FALSE(s.resident);
            EXPECT_EQ(s.rerun_layers, 1);
          }
        }
      }
    }
  }
}

// `keep_all` is Megatron on one GPU without recomputation.
TEST(TrainSettings, WhereEverythingFitsTheTrainerMovesNothingAndIsFast) {
  for (const int64_t tokens : {4 << 10, 8 << 10, 16 << 10}) {
    Request request = AskGpt(Method::kSluice, 1, tokens);
    request.model = *FindModel("llama-1b");
    request.hardware = *FindHardware("h100-80g");
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const Estimate ours,
        BestEstimate(request, {.engine = Engine::kTrainer}));
    EXPECT_TRUE(ours.settings.resident);
    for (const PassTimes* pass : {&ours.layer.forward, &ours.layer.backward}) {
      EXPECT_EQ(pass->copy_in + pass->copy_out, 0);
    }
    request.method = Method::kMegatron;
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const Estimate keep_all,
        BestEstimate(request, {.recompute = Recompute::kNone}));
    EXPECT_TRUE(keep_all.fits);
    EXPECT_GE(ours.tokens_per_gpu_per_s, 0.98 * keep_all.tokens_per_gpu_per_s);
  }
}

TEST(TrainSettings, WithoutAnEngineTheFasterEngineIsChosen) {
  bool chosen[2] = {false, false};
  for (const int64_t batch : {1, 16}) {
    Request request = AskGpt(Method::kSluice, 8, 128 << 10);
    request.model = *FindModel("llama-8b");
    request.hardware = *FindHardware("h100-80g");
    request.global_batch = batch;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    for (const Engine engine : kEngines) {
      SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate one,
                                  BestEstimate(request, {.engine = engine}));
      EXPECT_LE(best.step_s, one.step_s);
      if (best.settings.engine != engine) continue;
      EXPECT_EQ(best.step_s, one.step_s);
      chosen[int(engine)] = true;
    }
  }
  EXPECT_TRUE(chosen[0]);
}

TEST(TrainSettings, GivenSettingsAreKept) {
  GivenSettings given;
  given.tp = 4;
  given.alpha = 0.25;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best,
                              BestEstimate(AskGpt(Method::kMemo, 8), given));
  EXPECT_EQ(best.settings.tp, 4);
  EXPECT_EQ(best.settings.alpha, 0.25);
  bool no_heads = false;
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const std::vector<Settings> chunked,
      Candidates(AskGpt(Method::kFpdt, 8), {.chunk = 8 << 10}, &no_heads));
  ASSERT_FALSE(chunked.empty());
  EXPECT_EQ(chunked[0].chunk, 8 << 10);
}

TEST(TrainSettings, IndivisibleHeadsAreTheReasonForTheRefusal) {
  GivenSettings given;
  given.sp = 64;  // the model has 32 heads
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Estimate best, BestEstimate(AskGpt(Method::kUlysses, 64), given));
  EXPECT_FALSE(best.fits);
  EXPECT_EQ(best.reason, Reason::kHeads);
  EXPECT_GT(best.mfu, 0);
}

TEST(TrainSettings, GpusThatHeadsAndSequencesCannotShareStayIdle) {
  // With 32 heads, 4,096 GPUs need a batch of 128 sequences. The default is 16.
  Request request = AskGpt(Method::kSluice, 4096, 128 << 10);
  request.model = *FindModel("llama-8b");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
  EXPECT_TRUE(best.fits);
  EXPECT_EQ(best.settings.gpus(), 512);
  // Speeds per GPU count idle GPUs, too.
  EXPECT_NEAR(best.tokens_per_gpu_per_s * best.step_s * 4096,
              16.0 * (128 << 10), 1);
  IdleGpus idle = WhyIdle(request, {}, best);
  EXPECT_EQ(idle.gpus, 4096 - 512);
  EXPECT_TRUE(idle.by_heads);
  EXPECT_EQ(idle.batch, 128);
  request.global_batch = *idle.batch;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate more, BestEstimate(request, {}));
  EXPECT_EQ(more.settings.gpus(), 4096);
  EXPECT_EQ(WhyIdle(request, {}, more).gpus, 0);
  // With 28 heads, one sequence uses 7 of 8 GPUs. Two sequences use all 8.
  request = AskGpt(Method::kSluice, 8, 1 << 20);
  request.model = *FindModel("qwen2.5-7b");
  request.global_batch = 1;
  const GivenSettings python = {.engine = Engine::kPython};
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate seven,
                              BestEstimate(request, python));
  EXPECT_TRUE(seven.fits);
  EXPECT_EQ(seven.settings.gpus(), 7);
  idle = WhyIdle(request, python, seven);
  EXPECT_EQ(idle.gpus, 1);
  EXPECT_TRUE(idle.by_heads);
  EXPECT_EQ(idle.batch, 2);  // 4 ranks per sequence
  // sluice-train has no data parallelism, so no number of sequences uses 67
  // GPUs.
  request.gpus = 67;
  const GivenSettings trainer = {.engine = Engine::kTrainer};
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate most,
                              BestEstimate(request, trainer));
  EXPECT_LT(most.settings.gpus(), 67);
  EXPECT_FALSE(WhyIdle(request, trainer, most).batch.has_value());
}

TEST(TrainSettings, SluiceTrainUsesAnyFewGpusWithoutBeingTold) {
  Request request = AskGpt(Method::kSluice, 1, 1 << 20);
  request.model = *FindModel("llama-8b");
  request.hardware = *FindHardware("h100-80g");
  request.global_batch = 1;
  for (const int64_t gpus : {5, 6, 7, 12, 20}) {
    request.gpus = gpus;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate told,
                                BestEstimate(request, {.sp = gpus}));
    EXPECT_TRUE(told.fits);
    EXPECT_LE(best.step_s, told.step_s) << gpus;
    EXPECT_EQ(WhyIdle(request, {}, best).gpus, 0) << gpus;
  }
}

// Megatron's pieces have the same number of layers, and each round of a
// pipeline has as many sequences as stages.
TEST(TrainSettings, OnlyPossibleInterleavingIsAnswered) {
  Request request = AskGpt(Method::kMegatron, 8);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate two,
                              BestEstimate(request, {.interleave = 2}));
  EXPECT_GT(two.settings.pp, 1);
  EXPECT_EQ(two.settings.interleave, 2);
  for (const GivenSettings& given : {GivenSettings{.pp = 2, .interleave = 5},
                                     GivenSettings{.pp = 1, .interleave = 2}}) {
    EXPECT_THAT(BestEstimate(request, given),
                StatusIs(kInvalidSetting, HasSubstr("--interleave layers")));
  }
  request.global_batch = 5;
  EXPECT_THAT(BestEstimate(request, {.pp = 2, .interleave = 2}),
              StatusIs(kInvalidSetting));
}

// Otherwise 96 of 128 GPUs would be idle with Llama-8B's 32 heads, and 1 of 8
// with Qwen2.5-7B's 28 heads.
TEST(TrainSettings, SluiceTrainMayHaveMoreRanksThanHeadsOrNotDivideThem) {
  Request request = AskGpt(Method::kSluice, 128, 8 << 20);
  request.model = *FindModel("llama-8b");
  request.hardware = *FindHardware("h100-80g");
  request.global_batch = 1;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
  EXPECT_TRUE(best.fits);
  EXPECT_EQ(best.settings.gpus(), 128);
  EXPECT_EQ(RowParts(request, best.settings), 4);
  EXPECT_LE(best.step_s, 20 * 60);
  request.gpus = 8;
  request.seq_len = 1 << 20;
  request.model = *FindModel("qwen2.5-7b");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate qwen, BestEstimate(request, {}));
  EXPECT_EQ(qwen.settings.gpus(), 8);
  EXPECT_EQ(RowParts(request, qwen.settings), 2);
  // Any requested number of ranks is used.
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate five,
                              BestEstimate(request, {.sp = 5}));
  EXPECT_EQ(five.settings.engine, Engine::kTrainer);
  EXPECT_EQ(RowParts(request, five.settings), 5);
}

// A node has 8 of the 64 ranks. A rank holds half of the rows of one query
// head, and all rows of k and v of one of the 8 kv heads.
TEST(TrainSettings, RowPartsHoldAllKeysOfTheirHeads) {
  Request request = AskGpt(Method::kSluice, 64, 1 << 20);
  request.model = *FindModel("llama-8b");
  request.hardware = *FindHardware("h100-80g");
  const Settings parts{.sp = 64, .chunk = 64 << 10};
  const double tokens = 1 << 20, head = 2 * 128;
  const double inputs = 33 * tokens / 64 * 2 * 4096;
  const double saved = 32 * tokens / 2 * (head + 4);
  const double scratch =  // q, dO and fp32 dq; k and v
      tokens / 2 * (head + head + 2 * head) + 2 * tokens * head;
  EXPECT_EQ(EstimateStep(request, parts).host_bytes_per_node,
            8 * (inputs + saved + scratch + (4 << 20)));
}

TEST(TrainSettings, EveryStageOfZeROIsSearchedForEveryMethod) {
  for (const Method method : kMethods) {
    Request request = AskGpt(method, 1024, 128 << 10);
    request.model = Llama405b();
    request.hardware = *FindHardware("h100-80g");
    request.global_batch = 128;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    for (const int64_t stage : {1, 2, 3}) {
      const bool has_3_alone = method == Method::kAlst ||
                               method == Method::kUpipe ||
                               method == Method::kRing;
      if (has_3_alone && stage < 3) continue;
      if (method == Method::kSluice && stage == 2)
        continue;  // no engine has it
      GivenSettings given;
      given.zero = stage;
      SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate one,
                                  BestEstimate(request, given));
      if (!one.fits) continue;
      EXPECT_TRUE(best.fits) << MethodName(method);
      // Within a pipeline, the search shards more only if the stage is given.
      if (stage > 1 && one.settings.pp > 1) continue;
      EXPECT_LE(best.step_s, one.step_s) << MethodName(method) << stage;
    }
  }
}

// If weights were sharded only where nothing else fits, a GPU with more memory
// could get a slower step.
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
  // The fullest stage has 8 layers if the model has 30 or 32.
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
  request.model = *FindModel("gpt-13b");  // 40 heads: 3 or 2 on a rank
  request.global_batch = 1;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate uneven, BestEstimate(request, {}));
  EXPECT_NE(uneven.reason, Reason::kHeads);
  EXPECT_EQ(uneven.settings.sp, 16);
  request.gpus = 8;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate even, BestEstimate(request, {}));
  EXPECT_NEAR(uneven.breakdown.attention / even.breakdown.attention,
              3.0 * 16 / 40 / 2, 1e-9);
}

TEST(TrainSettings, ImpossibleStrategiesAreRefused) {
  const auto refused = [](const Request& request, const GivenSettings& given,
                          const char* what) {
    EXPECT_THAT(BestEstimate(request, given),
                StatusIs(kInvalidSetting, HasSubstr(what)));
  };
  GivenSettings three;
  three.dp = 3;
  refused(AskGpt(Method::kMegatron, 8), three, "global batch of 16");
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
  zero.zero = 2;
  refused(AskGpt(Method::kSluice, 8), zero,
          "trainer has --zero 1 alone; python has --zero 3");
  zero = {.engine = Engine::kTrainer, .zero = 3};
  refused(AskGpt(Method::kSluice, 8), zero, "--zero 1 alone");
  refused(AskGpt(Method::kFpdt, 8), zero, "--engine: method fpdt has none");
  refused(AskGpt(Method::kSluice, 8), {.engine = Engine::kTrainer, .dp = 2},
          "trainer has no --dp");
  refused(AskGpt(Method::kSluice, 8), {.engine = Engine::kPython, .alpha = 0},
          "python has no --alpha");
  refused(AskGpt(Method::kSluice, 8), {.dp = 2, .alpha = 0},
          "no --dp; python has no --alpha");
  refused(AskGpt(Method::kSluice, 8),
          {.engine = Engine::kPython, .keep = false},
          "python has no --no-keep");
  refused(AskGpt(Method::kMegatron, 8), {.keep = false},
          "--no-keep: method megatron");
  refused(AskGpt(Method::kMegatron, 8), {.tp = 16}, "at most the GPUs");
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
