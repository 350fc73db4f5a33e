// Tests that the cost model is consistent: values are monotonic, parts add up,
// limits bind.
#include "planner/train/estimate.h"

#include <limits>
#include <set>

#include "planner/train/layer.h"
#include "planner/train/search.h"
#include "proto/base/units.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

using ::sluice::testing::IsOk;

constexpr int64_t K = 1 << 10;

Request Ask(const char* model, const char* hardware, Method method,
            int64_t gpus, int64_t seq_len) {
  return {.model = *FindModel(model),
          .hardware = *FindHardware(hardware),
          .method = method,
          .gpus = gpus,
          .seq_len = seq_len};
}

// Returns the request's candidate settings that use all 8 GPUs.
std::vector<Settings> SomeSettings(const Request& request) {
  bool no_heads = false;
  std::vector<Settings> all = *Candidates(request, {}, &no_heads);
  std::erase_if(all, [](const Settings& s) { return s.gpus() < 8; });
  for (Settings& s : all) {
    s.alpha = 0.25;
    s.chunk = 32 * K;
  }
  return all;
}

TEST(TrainEstimate, CountsFlopsAsMemoDoes) {
  const ModelShape model = *FindModel("gpt-7b");
  const double n = 32, h = 4096, s = 65536, v = 50257;
  EXPECT_NEAR(CountedFlops(model, s),
              6 * s * (12 * n * h * h + v * h) + 6 * n * h * s * s, 1e9);
}

TEST(TrainEstimate, PartsAddUpToTheStepAndMfuFollowsFromIt) {
  for (const Method method : kMethods) {
    const Request request = Ask("llama-8b", "h100-80g", method, 8, 256 * K);
    for (const Settings& settings : SomeSettings(request)) {
      const Estimate e = EstimateStep(request, settings);
      EXPECT_NEAR(e.breakdown.total(), e.step_s, 1e-9 * e.step_s);
      EXPECT_NEAR(e.memory.total(), e.gpu_peak_bytes, 1);
      EXPECT_NEAR(
          e.mfu,
          16 * CountedFlops(request.model, 256 * K) / (e.step_s * 8 * 989e12),
          1e-9);
      EXPECT_NEAR(e.tokens_per_gpu_per_s * e.step_s * 8, 16.0 * 256 * K, 1);
    }
  }
}

// The exception: memory falls where states no longer fit and leave the GPU.
TEST(TrainEstimate, ALongerSequenceNeverUsesLessMemory) {
  for (const Method method : kMethods) {
    Request request = Ask("gpt-7b", "a800-80g", method, 8, 64 * K);
    for (const Settings& settings : SomeSettings(request)) {
      Estimate before;
      for (int64_t length = 64 * K; length <= 2048 * K; length += 64 * K) {
        request.seq_len = length;
        const Estimate e = EstimateStep(request, settings);
        if (e.memory.states >= before.memory.states) {
          EXPECT_GE(e.gpu_peak_bytes, before.gpu_peak_bytes);
        } else {
          EXPECT_GT(e.gpu_peak_bytes - e.memory.states + before.memory.states,
                    e.gpu_usable_bytes);
        }
        EXPECT_GE(e.host_bytes_per_node, before.host_bytes_per_node);
        EXPECT_GT(e.step_s, before.step_s);
        before = e;
      }
    }
  }
}

TEST(TrainEstimate, MoreGpusNeverShortenTheLongestSequence) {
  for (const char* model : {"gpt-7b", "llama-8b"}) {
    for (const Method method : kMethods) {
      int64_t before = 0;
      for (const int64_t gpus : {1, 2, 4, 7, 8, 13, 16, 32}) {
        SLUICE_ASSERT_OK_AND_ASSIGN(
            const LongestSequence longest,
            FindLongest(Ask(model, "a800-80g", method, gpus, 0), {}));
        EXPECT_GE(longest.tokens, before)
            << model << " " << MethodName(method) << " on " << gpus;
        before = longest.tokens;
      }
      EXPECT_GT(before, 0);
    }
  }
}

TEST(TrainEstimate, TheLongestSequenceFitsAndTheNextDoesNot) {
  for (const Method method : kMethods) {
    Request request = Ask("gpt-7b", "a800-80g", method, 8, 0);
    SLUICE_ASSERT_OK_AND_ASSIGN(const LongestSequence longest,
                                FindLongest(request, {}));
    ASSERT_GT(longest.tokens, 0);
    EXPECT_EQ(longest.tokens % (64 * K), 0);
    request.seq_len = longest.tokens;
    EXPECT_TRUE(BestEstimate(request, {})->fits);
    request.seq_len += kLengthStep;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate next, BestEstimate(request, {}));
    EXPECT_FALSE(next.fits);
    EXPECT_EQ(next.reason, longest.stopped_by);
  }
}

TEST(TrainEstimate, AStepMayTakeExactlyTheTimeLimit) {
  const Request request =
      Ask("gpt-7b", "a800-80g", Method::kSluice, 8, kLengthStep);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate first, BestEstimate(request, {}));
  SLUICE_ASSERT_OK_AND_ASSIGN(const LongestSequence longest,
                              FindLongest(request, {}, first.step_s));
  EXPECT_EQ(longest.tokens, kLengthStep);
  EXPECT_EQ(longest.stopped_by, Reason::kStep);
}

TEST(TrainEstimate, AModelTooLargeForItsGpusHasNoLength) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const LongestSequence longest,
      FindLongest(Ask("llama-70b", "h100-80g", Method::kSluice, 1, 0), {}));
  EXPECT_EQ(longest.tokens, 0);
  EXPECT_EQ(longest.stopped_by, Reason::kGpuMemory);
}

TEST(TrainEstimate, ForMoreTokensSluiceNeedsMoreHbmOnlyForIdsAndLabels) {
  Request request = Ask("llama-8b", "h100-80g", Method::kSluice, 8, 256 * K);
  Settings settings{.sp = 8, .alpha = 0, .chunk = 64 * K};
  const double before = EstimateStep(request, settings).gpu_peak_bytes;
  request.seq_len = 1024 * K;
  const double after = EstimateStep(request, settings).gpu_peak_bytes;
  EXPECT_EQ(after - before, 768 * K / 8 * 16);
}

// Expects the formula of client/python/DESIGN.md, which tests/python checks
// against runs.
TEST(TrainEstimate, PythonsHostBytesFollowItsDesignPage) {
  Request request = Ask("llama-8b", "h100-80g", Method::kSluice, 8, 1024 * K);
  Settings settings{
      .engine = Engine::kPython, .sp = 8, .zero = 3, .chunk = 64 * K};
  const double layers = 32, e = 2, h = 4096, kv = 1024, heads = 32;
  const double saved = 2 * e * kv + e * h + 4 * heads;
  const double scratch = (e * h + 8 * kv) * (1 - 1.0 / 16);
  EXPECT_EQ(EstimateStep(request, settings).host_bytes_per_node,
            double(1024 * K) * (layers * (saved + e * h) + scratch));
  // The first quarter of the tokens runs again, so its saved rows are kept for
  // one layer only.
  settings.rerun_chunks = 4;
  const double rerun = EstimateStep(request, settings).host_bytes_per_node;
  EXPECT_EQ(rerun,
            double(1024 * K) * (layers * e * h +
                                (layers * 3 / 4 + 1.0 / 4) * saved + scratch));
  // Optimizer states take 12 bytes per bf16 parameter. Gradients are bf16 and
  // sharded.
  settings.states = stream::StatePlace::kHost;
  const Estimate host = EstimateStep(request, settings);
  const double parameters = request.model.parameters();
  EXPECT_NEAR(host.host_bytes_per_node - rerun, 12 * parameters, 1);
  EXPECT_NEAR(host.memory.states,
              4 * parameters / 8 + 2 * double(MiB(64).count()), 1);
  // A kv head that several ranks need is stored once for each of them.
  request.gpus = 32;
  settings = {.engine = Engine::kPython, .sp = 32, .zero = 3, .chunk = 64 * K};
  EXPECT_EQ(EstimateStep(request, settings).host_bytes_per_node,
            double(1024 * K) / 4 *
                (layers * (8 * e * kv + 2 * e * h + 4 * heads) +
                 (e * h + 4 * 8 * kv) * (1 - 1.0 / 16)));
}

// Rerunning a part f of the tokens costs f^2 of attention's forward, and f of
// the forward's matrix products.
TEST(TrainEstimate, PythonRunsTheFirstTokensAgainOneLayerAtATime) {
  const Request request =
      Ask("llama-8b", "h100-80g", Method::kSluice, 8, 1024 * K);
  Settings settings{
      .engine = Engine::kPython, .sp = 8, .zero = 3, .chunk = 64 * K};
  const LayerTimes whole = EstimateStep(request, settings).layer;
  settings.rerun_chunks = 8;
  const LayerTimes half = EstimateStep(request, settings).layer;
  EXPECT_NEAR(half.recompute.attention, whole.forward.attention / 4, 1e-9);
  EXPECT_NEAR(half.recompute.matmul - whole.recompute.matmul,
              whole.forward.matmul / 2, 1e-9);
  EXPECT_EQ(half.forward.total(), whole.forward.total());
}

TEST(TrainEstimate, PythonReachesLongSequencesInStepsOfAnHour) {
  const auto longest = [](const char* model) {
    Request request = Ask(model, "h100-80g", Method::kSluice, 8, 0);
    request.global_batch = 1;
    return FindLongest(request, {.engine = Engine::kPython}, 3600)->tokens;
  };
  EXPECT_GE(longest("llama-8b"), 3584 * K);  // 3.5M
  EXPECT_GE(longest("llama-70b"), 600 * K);
}

TEST(TrainEstimate, KeepingTheAttentionOutputSavesOneAttentionForward) {
  // If attention dominates, its forward is 1 unit of work and its backward 2.5.
  // FPDT does 4.5 units, since it also recomputes forward, and Sluice 3.5.
  Request request = Ask("gpt-7b", "a800-80g", Method::kFpdt, 8, 4096 * K);
  const Estimate fpdt =
      EstimateStep(request, {.sp = 8, .zero = 3, .chunk = 64 * K});
  request.method = Method::kSluice;
  const Estimate ours =
      EstimateStep(request, {.sp = 8, .zero = 1, .chunk = 64 * K});
  EXPECT_NEAR(fpdt.step_s / ours.step_s, 4.5 / 3.5, 0.05);
}

TEST(TrainEstimate, AFasterLinkNeverMakesASlowerStep) {
  for (const Method method : {Method::kMemo, Method::kFpdt, Method::kSluice}) {
    Request request = Ask("gpt-7b", "a800-80g", method, 8, 128 * K);
    for (const Settings& settings : SomeSettings(request)) {
      request.hardware.host_link_bytes_per_s = 4e9;
      const double slow = EstimateStep(request, settings).step_s;
      request.hardware.host_link_bytes_per_s = 64e9;
      EXPECT_LE(EstimateStep(request, settings).step_s, slow);
    }
  }
}

TEST(TrainEstimate, AlphaTradesRecomputationForCopies) {
  const Request request = Ask("gpt-7b", "a800-80g", Method::kMemo, 8, 64 * K);
  const Estimate none = EstimateStep(request, {.tp = 8, .alpha = 0});
  const Estimate all = EstimateStep(request, {.tp = 8, .alpha = 1});
  EXPECT_GT(none.breakdown.recompute, 0);
  EXPECT_EQ(none.breakdown.exposed_copy, 0);
  EXPECT_EQ(all.breakdown.recompute, 0);
  EXPECT_GT(all.breakdown.exposed_copy, 0);
  EXPECT_NEAR(all.host_bytes_per_node, 8 * none.host_bytes_per_node, 1);
}

TEST(TrainEstimate, AllSkeletalCopiesAreHiddenAt256KButNotAt128K) {
  // MEMO, section 4.1, has 192K for 7B and TP 8.
  const auto exposed = [](int64_t seq_len) {
    return EstimateStep(Ask("gpt-7b", "a800-80g", Method::kMemo, 8, seq_len),
                        {.tp = 8, .alpha = 1})
        .breakdown.exposed_copy;
  };
  EXPECT_GT(exposed(128 * K), 0);
  EXPECT_EQ(exposed(256 * K), 0);
}

TEST(TrainEstimate, ASmallHostLimitsMemo) {
  Request request = Ask("gpt-7b", "a800-80g", Method::kMemo, 8, 384 * K);
  const Settings all{.tp = 4, .cp = 2, .alpha = 1};
  EXPECT_EQ(EstimateStep(request, all).reason, Reason::kHostMemory);
  request.hardware.host_memory_bytes *= 2;
  EXPECT_EQ(EstimateStep(request, all).reason, Reason::kOk);
}

TEST(TrainEstimate, ReorganisationIsChargedOnlyWhereItWasObserved) {
  // Sharded Megatron without parallelism inside a layer reorganised memory on
  // the A800. At that cost, reorganising would be 83 % of this step on an H100.
  Request request = Ask("llama-8b", "a800-80g", Method::kMegatron, 8, 32 * K);
  request.global_batch = 8;
  const Settings settings{.dp = 8, .zero = 3};
  const Estimate seen = EstimateStep(request, settings);
  EXPECT_GT(seen.breakdown.reorganisation, 0);
  EXPECT_FALSE(seen.reorganisation_unknown);
  for (const std::string& name : HardwareNames()) {
    if (name == "a800-80g") continue;
    request.hardware = *FindHardware(name);
    const Estimate other = EstimateStep(request, settings);
    EXPECT_EQ(other.breakdown.reorganisation, 0) << name;
    EXPECT_TRUE(other.reorganisation_unknown) << name;
  }
  request.hardware = *FindHardware("h100-80g");
  EXPECT_GT(EstimateStep(request, settings).mfu, 0.3);
}

TEST(TrainEstimate, MegatronsMfuOnAnH100DoesNotFallWithTheLength) {
  // Recomputation is fixed, because MFU does fall where shorter sequences
  // recompute less.
  const GivenSettings given = {.recompute = Recompute::kFull};
  double before = 0;
  for (const int64_t length : {48 * K, 64 * K, 96 * K, 128 * K, 192 * K}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        const Estimate best,
        BestEstimate(Ask("llama-8b", "h100-80g", Method::kMegatron, 8, length),
                     given));
    ASSERT_TRUE(best.fits) << length;
    EXPECT_GT(best.mfu, 0.9 * before) << length;
    before = best.mfu;
  }
}

TEST(TrainEstimate, ShardedGradientsAndWeightsCostTheirTraffic) {
  // Short sequences over a slow network do not hide the traffic behind compute.
  for (const Method method :
       {Method::kMegatron, Method::kMemo, Method::kUlysses}) {
    Request request = Ask("llama-8b", "fpdt-a100-80g", method, 16, 2 * K);
    request.global_batch = 64;
    request.hardware.ring_bytes_per_s = 5e9;
    double before = 0;
    for (const int zero : {1, 2, 3}) {
      const Estimate e = EstimateStep(request, {.dp = 16, .zero = zero});
      EXPECT_GT(e.step_s, before) << MethodName(method) << " " << zero;
      before = e.step_s;
    }
  }
}

// A gather over whole nodes uses all network cards of a node. Eight groups with
// one GPU per node share the cards.
TEST(TrainEstimate, CollectivesOverNodesShareNetworkCards) {
  const auto seconds = [](Method method, const Settings& settings) {
    const Request request = Ask("llama-8b", "h100-80g", method, 64, 8 * K);
    return EstimateStep(request, settings).breakdown.gradient_sync;
  };
  const double parameters = FindModel("llama-8b")->parameters();
  const double bytes = parameters * 6 * 63 / 64;  // gathers bf16, sums fp32
  EXPECT_NEAR(seconds(Method::kSluice, {.sp = 8, .dp = 8, .chunk = 8 * K}),
              bytes / (8 * 35e9), 1e-9);
  EXPECT_NEAR(seconds(Method::kMegatron, {.dp = 64}), bytes / (8 * 35e9), 1e-9);
  EXPECT_NEAR(seconds(Method::kMegatron, {.tp = 8, .dp = 8}),
              parameters / 8 * 6 * 7 / 8 / 35e9, 1e-9);
}

// If host memory is short, the last tokens stay in HBM, and the first tokens
// run again. For longer sequences more layers run again together.
TEST(TrainEstimate, WhereTheHostIsShortTheFirstTokensRunAgain) {
  Request request{.model = *FindModel("llama-8b"),
                  .hardware = *FindHardware("h100-80g"),
                  .gpus = 8,
                  .global_batch = 1};
  double rerun = 0, recompute = 0;
  for (const int64_t seq_len : {4 << 20, 6 << 20, 8 << 20}) {
    request.seq_len = seq_len;
    const Estimate best = *BestEstimate(request, {});
    ASSERT_TRUE(best.fits) << seq_len;
    const Settings& s = best.settings;
    EXPECT_GT(s.kept, 0);
    EXPECT_LE(s.zero, 1);
    const double part = double(s.rerun_chunks * s.chunk) / double(seq_len);
    EXPECT_GE(part, rerun);
    EXPECT_GE(best.layer.recompute.attention, recompute);
    rerun = part;
    recompute = best.layer.recompute.attention;
    // Rerunning a part f of the tokens costs f^2 of attention's forward, in all
    // groups of layers but one.
    EXPECT_NEAR(recompute / best.layer.forward.attention,
                part * part *
                    double((request.model.layers - 1) / s.rerun_layers *
                           s.rerun_layers) /
                    double(request.model.layers),
                1e-9);
  }
  EXPECT_GT(rerun, 0.5);
}

TEST(TrainEstimate, InLargerGroupsMoreOfALayerRunsAgain) {
  const Request request =
      Ask("llama-8b", "h100-80g", Method::kSluice, 8, 256 * K);
  Settings settings{.sp = 8, .alpha = 0, .chunk = 32 * K, .rerun_chunks = 4};
  const double one = EstimateStep(request, settings).layer.recompute.matmul;
  settings.rerun_layers = 4;
  EXPECT_GT(EstimateStep(request, settings).layer.recompute.matmul, one);
}

TEST(TrainEstimate, EachStageOfZeROShardsMoreStates) {
  const Request request =
      Ask("llama-8b", "h100-80g", Method::kMegatron, 8, 64 * K);
  double before = std::numeric_limits<double>::infinity();
  for (const int stage : {0, 1, 2, 3}) {
    const Settings settings{.dp = 8, .zero = stage};
    const double states = EstimateStep(request, settings).memory.states;
    EXPECT_LT(states, before) << stage;
    before = states;
  }
}

TEST(TrainEstimate, AsFewChunksRunAgainAsTheHostAllows) {
  Request request = Ask("llama-8b", "h100-80g", Method::kSluice, 8, 256 * K);
  const Settings settings{.sp = 8, .alpha = 0, .chunk = 32 * K};
  const double all = TrainerStep(request, settings).host_bytes_per_node;
  const auto fits = [&](const Settings& placed) {
    const StepParts parts = TrainerStep(request, placed);
    return parts.host_bytes_per_node <= parts.host_usable_bytes;
  };
  std::set<int64_t> counts;
  for (int percent = 200; percent > 0; --percent) {
    request.hardware.host_memory_bytes = all * percent / 100;
    const auto candidates = PlaceChunks(request, settings, /*keep=*/false);
    for (Settings placed : candidates) {
      counts.insert(placed.rerun_chunks);
      if (placed.rerun_chunks == 0) continue;
      EXPECT_TRUE(fits(placed) || placed.rerun_chunks == 8) << percent;
      --placed.rerun_chunks;
      EXPECT_FALSE(fits(placed)) << percent;
    }
  }
  EXPECT_EQ(counts, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

// Without optimizer states, 8B's weights and gradients leave room for a step on
// one H100, and 70B's, sharded, on eight.
TEST(TrainEstimate, OptimizerStatesThatDoNotFitHbmAreInHostMemory) {
  const auto ask = [](const char* model, int64_t gpus) {
    return Request{.model = *FindModel(model),
                   .hardware = *FindHardware("h100-80g"),
                   .gpus = gpus,
                   .seq_len = 64 * K,
                   .global_batch = 1};
  };
  for (const auto& [model, gpus] :
       {std::pair("llama-8b", 1), std::pair("llama-70b", 8)}) {
    const Estimate best = *BestEstimate(ask(model, gpus), {});
    EXPECT_TRUE(best.fits) << model;
    EXPECT_EQ(best.settings.states, stream::StatePlace::kHost) << model;
    EXPECT_GT(best.breakdown.exposed_copy, 0) << model;
  }
  EXPECT_EQ(BestEstimate(ask("llama-8b", 8), {})->settings.states,
            stream::StatePlace::kHbm);
  SLUICE_ASSERT_OK_AND_ASSIGN(const LongestSequence longest,
                              FindLongest(ask("llama-8b", 1), {}, 3600));
  EXPECT_GE(longest.tokens, 1280 * K);
}

// Only the embedding's states are copied before any compute.
TEST(TrainEstimate, StatesOnTheHostAreCopiedBehindTheFirstForward) {
  Request request = Ask("llama-8b", "h100-80g", Method::kSluice, 8, 1024 * K);
  Settings settings{.sp = 8, .alpha = 0, .chunk = 64 * K};
  settings.states = stream::StatePlace::kHost;
  double& link = request.hardware.host_link_bytes_per_s;
  const auto exposed_bytes = [&] {
    return TrainerStep(request, settings).states_copy_s * link;
  };
  const double embedding = 12.0 * 128256 * 4096 / 8;
  EXPECT_NEAR(exposed_bytes(), embedding, embedding / 100);
  request.seq_len = settings.chunk = 8 * K;
  link = 1e7;  // the copies take far longer than forward
  const double all = 12.0 * double(request.model.trained_parameters()) / 8;
  EXPECT_LE(exposed_bytes(), all);
  EXPECT_GE(exposed_bytes(), 0.95 * all);
}

TEST(TrainEstimate, TheSearchIsNeverWorseThanAnyOfItsCandidates) {
  for (const Method method : kMethods) {
    const Request request = Ask("gpt-7b", "a800-80g", method, 8, 128 * K);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
    for (const Settings& settings : SomeSettings(request)) {
      const Estimate e = EstimateStep(request, settings);
      if (e.fits) {
        EXPECT_LE(best.step_s, e.step_s) << MethodName(method);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::planner::train
