// What a streamed step takes of HBM and of the host, and that a plan of its
// segments can be replayed.
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

constexpr Bytes kHbm = MiB(64);

// One rank whose tensors all lie in an armed region.
class StreamMemory : public ::testing::Test {
 protected:
  StreamMemory() {
    EXPECT_THAT(
        device::CreateSimNode(directory_.path(),
                              {.gpus = {{MiB(1), "pcie0", NumaIndex(0)}},
                               .links = {{"pcie0", 0, 0}},
                               .host_memory = MiB(1)}),
        IsOk());
    driver_ = *device::OpenSimDriver(directory_.path());
    engine_ = *client::CopyEngine::Start({.driver = driver_.get()});
    allocator_.Arm();
  }
  ~StreamMemory() override { allocator_.Disarm(); }

  StreamContext::Options Options(int64_t seq_len, double alpha = 0.5) {
    return {.model = {.layers = 2,
                      .hidden = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .ffn = 44,
                      .vocab = 50},
            .layout = ChunkLayout(seq_len, 16, 1),
            .dtype = dtype_,
            .stream = {.alpha = alpha},
            .copies = engine_.get(),
            .allocator = &allocator_};
  }

  // Runs a step; the peak of what it allocated beside tokens and weights.
  Bytes Step(StreamContext::Options options) {
    options.host_size = StreamContext::HostBytes(options);
    const Arena arena(options.host_size);
    options.host = arena.data();
    const ModelTensors weights = InitialTensors(options.model, dtype_, 1);
    ModelTensors gradients = ZeroTensors(options.model, at::kFloat);
    const int64_t rows = options.layout.seq_len();
    const at::Tensor tokens = at::zeros({rows}, at::kLong);
    const Bytes before = allocator_.stats().used;
    allocator_.ResetPeak();
    auto context = StreamContext::Create(options);
    EXPECT_THAT(context, IsOk());
    EXPECT_THAT(
        StreamedStep(**context, weights, gradients, tokens, tokens, rows),
        IsOk());
    EXPECT_THAT(engine_->Drain(), IsOk());
    EXPECT_TRUE(arena.GuardIntact());
    return allocator_.stats().peak - before;
  }

  // Every buffer at a place of its own: wasteful and certainly valid.
  static std::vector<plan::SegmentPlan> SideBySide(
      const std::vector<plan::SegmentKind>& kinds, Bytes* peak) {
    std::vector<plan::SegmentPlan> plans;
    for (const plan::SegmentKind& kind : kinds) {
      plan::SegmentPlan plan{.name = kind.name};
      Bytes at;
      for (const plan::Buffer& buffer : kind.trace.buffers) {
        plan.placement.offsets.push_back(at);
        at += RoundUp(buffer.size, kRegionAlignment);
      }
      plan.placement.peak = at;
      *peak = std::max(*peak, at);
      plans.push_back(plan);
    }
    return plans;
  }

  const testing::TempDir directory_;
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<client::CopyEngine> engine_;
  const Arena hbm_{kHbm};
  RegionAllocator allocator_{hbm_.data(), kHbm};
  at::ScalarType dtype_ = at::kFloat;
};

TEST_F(StreamMemory, NothingInHbmGrowsWithTheSequence) {
  Step(Options(48));  // one-time allocations of libraries
  const Bytes three_chunks = Step(Options(48));
  const Bytes twenty_chunks = Step(Options(320));
  // Bookkeeping tensors aside there is only the labels' mask at the end.
  EXPECT_LE(twenty_chunks, three_chunks + Bytes(1024));
}

TEST_F(StreamMemory, RingBytesAreWhatCreateAllocates) {
  StreamContext::Options options = Options(71);
  options.host_size = StreamContext::HostBytes(options);
  const Arena arena(options.host_size);
  options.host = arena.data();
  const Bytes before = allocator_.stats().used;
  auto context = StreamContext::Create(options);
  ASSERT_THAT(context, IsOk());
  EXPECT_EQ(allocator_.stats().used - before,
            StreamContext::RingBytes(options));
}

TEST_F(StreamMemory, ASmallerHostRegionIsRefusedWithBothSizes) {
  StreamContext::Options options = Options(71);
  options.host_size = StreamContext::HostBytes(options) - Bytes(1);
  const Arena arena(options.host_size);
  options.host = arena.data();
  EXPECT_THAT(StreamContext::Create(options).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(StreamMemory, HostBytesShrinkWithAlpha) {
  EXPECT_LT(StreamContext::HostBytes(Options(800, 0)),
            StreamContext::HostBytes(Options(800, 1)));
}

// A plan from a calibration of two chunks and the tail fits a longer step.
void ExpectReplay(RegionAllocator& allocator,
                  const std::function<void(int64_t)>& step,
                  const std::function<std::vector<plan::SegmentPlan>(
                      const std::vector<plan::SegmentKind>&, Bytes*)>& place) {
  allocator.RecordSegments(true);
  step(StreamContext::CalibrationLayout(ChunkLayout(135, 16, 1)).seq_len());
  const std::vector<plan::SegmentKind> kinds = allocator.TakeRecorded();
  allocator.RecordSegments(false);
  EXPECT_GE(kinds.size(), 20u);
  Bytes peak;
  const auto plans = place(kinds, &peak);
  ASSERT_THAT(allocator.SetPlan(plans, kinds, peak), IsOk());
  step(135);
  EXPECT_EQ(allocator.stats().mismatches, 0);
  EXPECT_GT(allocator.stats().planned_allocations, 1000);
}

TEST_F(StreamMemory, ACalibrationsPlanIsReplayedWithoutMismatch) {
  ExpectReplay(
      allocator_, [&](int64_t n) { Step(Options(n)); }, SideBySide);
}

TEST_F(StreamMemory, ACalibrationsPlanIsReplayedWithoutMismatchInBf16) {
  dtype_ = at::kBFloat16;
  ExpectReplay(
      allocator_, [&](int64_t n) { Step(Options(n)); }, SideBySide);
}

TEST_F(StreamMemory, AProbeRunsEverySegmentKindInTheSameMemory) {
  Step(Options(135));
  const Bytes whole = Step(Options(135));
  StreamContext::Options probe = Options(135);
  probe.stream.probe = true;
  EXPECT_EQ(Step(probe), whole);
}

TEST_F(StreamMemory, TheProfileCountsExecutionsAndBoundsHostBytes) {
  allocator_.RecordSegments(true);
  Step(Options(135));
  const auto kinds = allocator_.TakeRecorded();
  for (const double alpha : {0.0, 0.3, 1.0}) {
    const StreamContext::Options options = Options(135, alpha);
    const plan::RankProfile profile = StreamContext::Profile(options, kinds);
    double host = double(profile.host_fixed.count());
    for (const plan::SkeletalClass& c : profile.classes) {
      host += double(profile.layers * c.bytes_per_layer.count()) *
              (c.must_swap ? 1 : alpha);
    }
    EXPECT_GE(host, double(StreamContext::HostBytes(options).count()));
  }
  // Recorded in the whole step itself, so counted alike.
  const auto profile = StreamContext::Profile(Options(135), kinds);
  ASSERT_EQ(profile.segments.size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(profile.segments[i].executions, kinds[i].executions)
        << kinds[i].name;
  }
  EXPECT_GT(profile.forward_layer_seconds, 0);
  EXPECT_GT(profile.backward_layer_seconds, profile.forward_layer_seconds / 2);
}

// Exactly so where nothing is rounded; what comes in hides the most.
TEST_F(StreamMemory, AStepMovesTheBytesThatTheProfileTells) {
  for (const double alpha : {0.0, 1.0}) {
    const StreamContext::Options options = Options(135, alpha);
    const plan::RankProfile profile = StreamContext::Profile(options, {});
    int64_t in =
        (profile.forward_h2d_fixed + profile.backward_h2d_fixed).count();
    int64_t out =
        (profile.forward_d2h_fixed + profile.backward_d2h_fixed).count();
    int64_t hidden = 0;
    for (const plan::SkeletalClass& c : profile.classes) {
      if (c.name == "layer_input") hidden = c.bytes_per_layer.count();
      if (c.traffic_in_fixed || (alpha == 0 && !c.must_swap)) continue;
      in += c.bytes_per_layer.count();
      out += c.bytes_per_layer.count();
    }
    const client::CopyStats before = engine_->stats();
    Step(options);
    const client::CopyStats after = engine_->stats();
    // Beside the layers: the loss and the embedding's backward fetch a hidden
    // state each, the embedding and the loss send one.
    EXPECT_EQ((after.h2d - before.h2d).count(),
              profile.layers * in + 2 * hidden);
    EXPECT_LE((after.d2h - before.d2h).count(),
              profile.layers * out + 2 * hidden);
    EXPECT_GE((after.d2h - before.d2h).count(), profile.layers * out * 8 / 10);
  }
}

}  // namespace
}  // namespace sluice::runtime
