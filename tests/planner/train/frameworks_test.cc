// Tests UPipe, FSDP with a ring, and Megatron-LM's choices: recomputation,
// interleaved stages, spread experts. Expected values are computed by hand.
#include "planner/train/search.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kKi = 1 << 10;

Request AskH100(const char* model, Method method, int64_t gpus, int64_t seq_len,
                int64_t batch) {
  return {.model = *FindModel(model),
          .hardware = *FindHardware("h100-80g"),
          .method = method,
          .gpus = gpus,
          .seq_len = seq_len,
          .global_batch = batch};
}

// Llama-8B on 8 GPUs needs 5 hidden states, 2 tensors as wide as the queries,
// 12 tensors of a quarter of the heads, and the rotary table of all tokens.
TEST(Upipe, NeedsTheMemoryCountedByHand) {
  Request request = AskH100("llama-8b", Method::kUpipe, 8, 1024 * kKi, 1);
  const Settings settings{.sp = 8, .zero = 3};
  const Estimate e = EstimateStep(request, settings);
  const double hidden = 128.0 * kKi * 4096 * 2;
  EXPECT_NEAR(e.memory.transient, (5 + 2 + 12 * 8 / 32.0) * hidden, 1);
  EXPECT_NEAR(e.memory.states, request.model.parameters() * 16 / 8, 1);
  EXPECT_NEAR(e.host_bytes_per_node, 31 * 8 * hidden, 1);
  request.seq_len *= 2;
  const Estimate two = EstimateStep(request, settings);
  EXPECT_NEAR(two.memory.buffers - e.memory.buffers, 1024.0 * kKi * 64 * 8, 1);
}

TEST(Upipe, MakesQKVOnceMoreInBackwardAndTheMlpThreeTimes) {
  const Request request = AskH100("llama-8b", Method::kUpipe, 8, 128 * kKi, 1);
  const Estimate e = EstimateStep(request, {.sp = 8, .zero = 3});
  const double qkv = 4096.0 * (4096 + 2 * 1024), mlp = 3.0 * 4096 * 14336;
  const double layer = qkv + 4096.0 * 4096 + mlp;
  const double forward = e.layer.forward.matmul;
  EXPECT_NEAR(e.layer.backward.matmul / forward, 2 + qkv / layer, 1e-9);
  EXPECT_NEAR(e.layer.recompute.matmul / forward, 1 + mlp / layer, 1e-9);
  EXPECT_NEAR(e.layer.backward.network / e.layer.forward.network, 2, 1e-9);
}

TEST(Upipe, ARingOverNodesSendsQThenKVAndTheirGradients) {
  Request request = AskH100("llama-8b", Method::kUpipe, 16, 128 * kKi, 1);
  request.hardware.network_bytes_per_s = 1e9;
  const Estimate e = EstimateStep(request, {.cp = 2, .sp = 8, .zero = 3});
  const double queries = 64.0 * kKi * 4096 / 8 * 2 / 1e9;
  const double exchange =
      e.layer.forward.network - (queries - e.layer.forward.attention);
  EXPECT_GT(queries, e.layer.forward.attention);
  EXPECT_GT(exchange, 0);
  EXPECT_NEAR(
      e.layer.backward.network,
      2 * exchange + 4 * queries + (6 * queries - e.layer.backward.attention),
      1e-9);
  EXPECT_NEAR(e.memory.transient,
              (7 + 28 * 8 / 32.0) * (64.0 * kKi / 8 * 4096 * 2), 1);
}

// As in UPipe's recipes, 8 GPUs exchange heads, and a ring connects nodes.
TEST(Upipe, ExchangesHeadsInANodeAndRingsBetweenNodes) {
  for (const int64_t gpus : {8, 16, 32}) {
    const Request request =
        AskH100("llama-8b", Method::kUpipe, gpus, 1024 * kKi, 1);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    EXPECT_EQ(best.settings.sp, 8);
    EXPECT_EQ(best.settings.cp, gpus / 8);
  }
}

TEST(Ring, KeepsWhatItsRecomputationSays) {
  const Request request = AskH100("llama-8b", Method::kRing, 8, 8 * kKi, 16);
  Settings settings{.dp = 8, .zero = 3, .recompute = Recompute::kNone};
  const Estimate none = EstimateStep(request, settings);
  settings.recompute = Recompute::kSelective;
  const Estimate selective = EstimateStep(request, settings);
  settings.recompute = Recompute::kFull;
  const Estimate full = EstimateStep(request, settings);
  // Bytes that one element per token takes in all layers.
  const double layers = 32.0 * 8 * kKi * 2;
  EXPECT_NEAR(none.memory.skeletal, layers * request.model.skeletal_elements(),
              1);
  // The input and o are kept whole. Half of the rest is kept: q, k, v, o's
  // projection, up, gate and down.
  EXPECT_NEAR(selective.memory.skeletal,
              layers * (2 * 4096 + (3 * 4096 + 2 * 1024 + 2 * 14336) / 2.0), 1);
  EXPECT_NEAR(full.memory.skeletal, layers * 4096, 1);
  EXPECT_EQ(none.layer.recompute.total(), 0);
  EXPECT_NEAR(selective.layer.recompute.matmul, full.layer.forward.matmul / 2,
              1e-12);
  EXPECT_EQ(full.layer.recompute.total(), full.layer.forward.total());
  EXPECT_NEAR(full.memory.states, request.model.parameters() * 16 / 8, 1);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
  EXPECT_EQ(best.settings.recompute, Recompute::kNone);
}

TEST(Ring, RunsTorchsOwnAttention) {
  Request request = AskH100("llama-8b", Method::kRing, 8, 8 * kKi, 16);
  const Settings settings{.dp = 8, .zero = 3};
  const double slow = EstimateStep(request, settings).breakdown.attention;
  request.method = Method::kMegatron;
  EXPECT_NEAR(EstimateStep(request, settings).breakdown.attention,
              request.hardware.torch_attention * slow, 1e-9);
}

TEST(Megatron, InterleavingCutsTheBubbleAndKeepsMoreInFlight) {
  const Request request =
      AskH100("gpt-175b", Method::kMegatron, 96, 4 * kKi, 1536);
  Settings settings{.tp = 8, .pp = 12, .recompute = Recompute::kNone};
  const Estimate one = EstimateStep(request, settings);
  settings.interleave = 8;
  const Estimate eight = EstimateStep(request, settings);
  EXPECT_NEAR(eight.breakdown.pipeline_bubble,
              one.breakdown.pipeline_bubble / 8, 1e-9);
  EXPECT_NEAR(eight.memory.skeletal / one.memory.skeletal, 1 + 11.0 / (12 * 8),
              1e-9);
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Estimate best,
      BestEstimate(request, {.tp = 8, .pp = 12, .zero = 1}));
  EXPECT_EQ(best.settings.interleave, 8);
}

// MEMO's tables have full recomputation and no interleaving.
TEST(Megatron, HasThePublishedSettingsOnTheTablesMachine) {
  Request request = AskH100("gpt-65b", Method::kMegatron, 64, 8 * kKi, 64);
  request.hardware = *FindHardware("a800-80g");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
  EXPECT_EQ(best.settings.recompute, Recompute::kFull);
  EXPECT_EQ(best.settings.interleave, 1);
}

TEST(Mixture, SpreadExpertsShareWeightsAndSendEveryTokenToItsExperts) {
  const Request request =
      AskH100("mixtral-8x7b", Method::kMegatron, 8, 4 * kKi, 64);
  Settings settings{.dp = 8};
  const Estimate whole = EstimateStep(request, settings);
  settings.ep = 8;
  const Estimate spread = EstimateStep(request, settings);
  const double experts = 32.0 * 8 * 3 * 4096 * 14336;
  EXPECT_NEAR(whole.memory.states - spread.memory.states, experts * 6 * 7 / 8,
              1e3);
  EXPECT_NEAR(spread.layer.forward.network - whole.layer.forward.network,
              2 * (4.0 * kKi * 4096 * 2) * 2 * 7 / 8 /
                  request.hardware.gpu_link_bytes_per_s,
              1e-9);
  // Two of eight experts compute.
  EXPECT_NEAR(whole.layer.forward.matmul,
              2 * 4.0 * kKi * request.model.layer_weights() /
                  (989e12 * request.hardware.matmul_efficiency),
              1e-9);
}

TEST(Frameworks, RefuseSettingsThatTheyLack) {
  const auto refused = [](const Request& request, const GivenSettings& given,
                          const char* what) {
    EXPECT_THAT(BestEstimate(request, given),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  const Request upipe = AskH100("llama-8b", Method::kUpipe, 8, 64 * kKi, 1);
  const Request ring = AskH100("llama-8b", Method::kRing, 8, 64 * kKi, 1);
  refused(upipe, {.tp = 2}, "--tp");
  refused(upipe, {.zero = 1}, "--zero");
  refused(upipe, {.recompute = Recompute::kNone}, "--recompute");
  refused(ring, {.sp = 2}, "--sp");
  refused(ring, {.pp = 2}, "--pp");
  refused(ring, {.interleave = 2}, "--interleave");
  refused(AskH100("llama-8b", Method::kMegatron, 8, 64 * kKi, 8), {.ep = 2},
          "--ep");
  refused(AskH100("mixtral-8x7b", Method::kSluice, 8, 64 * kKi, 1), {},
          "mixture");
}

}  // namespace
}  // namespace sluice::planner::train
