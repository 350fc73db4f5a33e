// Compares estimates with the steps of an H100 that
// deploy/bundle/measured/README.md lists, at the commit named there.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "planner/train/constants.h"
#include "planner/train/passes.h"
#include "planner/train/search.h"
#include "tests/support/places.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

constexpr int64_t kKibi = 1 << 10;
// Allowed difference, as a part of the measured tokens per second. At 64K the
// estimate is 16 % too fast: it issues a phase's first copies early (4 %),
// omits the optimizer's launches and the loss's elementwise kernels, and copies
// o in bf16, where the runs copied fp32. At 256K and 512K it is 4 and 8 % too
// slow: attention was measured for other heads.
constexpr double kTolerance = 0.17;

// Slows the machine down, because the runs computed gradients of weights in
// TF32 and used ATen's elementwise kernels (as engine python does).
void RunAsThen(const ModelShape& model, Hardware& hardware) {
  const double wide = double(model.ffn) / double(model.hidden);
  const Passes now = ForwardPasses(model, /*stored=*/true) +
                     BackwardPasses(model, stream::BackwardOrder::kKeysOuter);
  const double then = kPythonForwardMoves + kPythonBackwardMoves +
                      wide * (kPythonForwardWide + kPythonBackwardWide);
  hardware.memory_bytes_per_s *=
      now.Elements(model) / double(model.hidden) / then;
  hardware.matmul_efficiency *=
      3 / (2 + hardware.matmul_efficiency / hardware.matmul_fp32_efficiency);
}

// `hbm` is the GPU memory that the run could use, in bytes.
Request OnTheH100(int64_t seq_len, double hbm) {
  std::ifstream in(
      InTree("deploy/bundle/measured/nvidia-h100-80gb-hbm3/profile.toml"));
  std::stringstream text;
  text << in.rdbuf();
  absl::StatusOr<Hardware> hardware = ReadHardware(text.str(), "profile.toml");
  EXPECT_TRUE(hardware.ok()) << hardware.status();
  hardware->memory_bytes = hbm / kLeasedMemory;
  const ModelShape model = stream::Llama({.layers = 4,
                                          .hidden = 2048,
                                          .heads = 16,
                                          .kv_heads = 4,
                                          .ffn = 5632,
                                          .vocab = 256});
  RunAsThen(model, *hardware);
  return {.model = model,
          .hardware = *hardware,
          .gpus = 1,
          .seq_len = seq_len,
          .global_batch = 1};
}

// Returns the fastest estimate that keeps no chunk in HBM, as the run did.
Estimate AsItRan(const Request& request) {
  Estimate best;
  for (int i = 0; i <= 16; ++i) {
    const Estimate estimate = EstimateStep(
        request, {.alpha = i / 16.0, .chunk = 16 * kKibi, .memory_plan = true});
    if (estimate.fits && (!best.fits || estimate.step_s < best.step_s)) {
      best = estimate;
    }
  }
  return best;
}

TEST(MeasuredSteps, EstimatesAgreeWithStepsOfAnH100) {
  struct Run {
    int64_t seq_len;
    double hbm_gib, tokens_per_s;
  };
  for (const auto& [seq_len, hbm, measured] :
       {Run{64 * kKibi, 12, 65513}, Run{256 * kKibi, 16, 28972},
        Run{512 * kKibi, 16, 16143}}) {
    const Estimate desk = AsItRan(OnTheH100(seq_len, hbm * (1 << 30)));
    const double times = desk.tokens_per_gpu_per_s / measured;
    std::printf("%lldK: desk %.0f, measured %.0f tokens/s: %+.1f %%\n",
                static_cast<long long>(seq_len / kKibi),
                desk.tokens_per_gpu_per_s, measured, 100 * (times - 1));
    EXPECT_NEAR(times, 1, kTolerance) << seq_len;
  }
}

TEST(MeasuredSteps, TheProfileSaysThatItsAttentionIsOfOtherHeads) {
  const Request request = OnTheH100(64 * kKibi, 80e9);
  EXPECT_EQ(request.hardware.attention_head_dim, 64);
  EXPECT_TRUE(request.hardware.OtherHeads(request.model.head_dim()));
}

}  // namespace
}  // namespace sluice::planner::train
