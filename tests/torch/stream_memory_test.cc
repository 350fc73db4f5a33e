// Tests the HBM, the host memory and the traffic of a streamed step, and that a
// plan of its segments can be replayed.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/torch/placement.h"
#include "planner/stream/profile.h"
#include "planner/stream/stream_shape.h"
#include "tests/torch/forwarding_engine.h"
#include "tests/torch/initial_tensors.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes kHbm = MiB(64);

// Records the labels of all copies, in order.
class Listener final : public client::ForwardingEngine {
 public:
  explicit Listener(client::CopyEngine* engine) : ForwardingEngine(engine) {}
  client::Ticket Enqueue(client::CopyRequest request) override {
    labels.push_back(request.label);
    return ForwardingEngine::Enqueue(std::move(request));
  }
  // Returns the position of the n-th copy with a label (from 0).
  auto Nth(const std::string& label, int64_t n) const {
    auto at = std::ranges::find(labels, label);
    while (n-- > 0) at = std::find(std::next(at), labels.end(), label);
    return at;
  }
  std::vector<std::string> labels;
};

// One rank with all tensors in an armed region.
class StreamMemory : public ::testing::Test {
 protected:
  ~StreamMemory() override {
    EXPECT_THAT(allocator_.SetPlan({}, {}, Bytes(0)), IsOk());
    allocator_.RecordSegments(false);
    allocator_.TakeRecorded();
    if (own_.has_value()) own_->Disarm();
  }

  StreamContext::Options Options(int64_t seq_len, double alpha = 0.5) {
    return {.stream = {.model = {.layers = 2,
                                 .hidden = 32,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .ffn = 44,
                                 .vocab = 50},
                       .layout = stream::ChunkLayout(seq_len, 16, 1),
                       .dtype = dtype_,
                       .alpha = alpha},
            .device = node_.device(),
            .copies = engine_.get(),
            .allocator = &allocator_};
  }

  // Some classes have their own fractions, all of whole rows in chunks of 16.
  StreamContext::Options MixedOptions(int64_t seq_len) {
    StreamContext::Options options = Options(seq_len, 0.75);
    options.stream.fractions = {
        {"norm1", {0.25, 0.5}},    {"q", {0, 0.5}},
        {"k", {0, 0.25}},          {"attention_residual", {0.5, 0}},
        {"norm2", {0, 0}},         {"ffn_up", {0.125, 0.625}},
        {"ffn_activation", {1, 0}}};
    return options;
  }

  StreamContext::Options QueriesOuter(StreamContext::Options options) {
    options.stream.order = stream::BackwardOrder::kQueriesOuter;
    return options;
  }

  StreamContext::Options ResidentOptions(int64_t seq_len) {
    StreamContext::Options options = Options(seq_len);
    options.stream.fractions = stream::KeepEverything(options.stream.model);
    return options;
  }

  // Runs a step. Returns its peak allocation without tokens, weights and
  // gradients.
  Bytes Step(StreamContext::Options options) {
    options.host_size = stream::HostBytes(options.stream);
    const Arena arena(options.host_size, node_);
    options.host = arena.data();
    const at::Device device = node_.device();
    const ModelTensors weights =
        InitialTensors(options.stream.model, TorchType(dtype_), device, 1);
    ModelTensors gradients =
        ZeroTensors(options.stream.model, at::kFloat, device);
    const int64_t rows = options.stream.layout.seq_len();
    const at::Tensor tokens = at::zeros({rows}, On(device, at::kLong));
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

  // Places buffers without overlap: wasteful, but certainly valid.
  static std::vector<plan::SegmentPlan> SideBySide(
      const std::vector<plan::SegmentKind>& kinds, Bytes* peak) {
    std::vector<plan::SegmentPlan> plans;
    for (const plan::SegmentKind& kind : kinds) {
      plan::SegmentPlan plan{.name = kind.name};
      Bytes at;
      for (const plan::Buffer& buffer : kind.trace.buffers) {
        plan.placement.offsets.push_back(at);
        at += RoundUp(buffer.size, kind.trace.alignment);
      }
      plan.placement.peak = at;
      *peak = std::max(*peak, at);
      plans.push_back(plan);
    }
    return plans;
  }

  // Returns the allocator of the node's GPU, or on sim this test's own.
  RegionAllocator& Armed() {
    if (node_.hbm() != nullptr) return *node_.hbm();
    memory_.emplace(kHbm);
    own_.emplace(at::kCPU, memory_->data(), kHbm);
    own_->Arm();
    return *own_;
  }

  const TestNode node_{1, 0, 0};
  std::unique_ptr<client::CopyEngine> engine_ = *node_.StartCopies(0);
  std::optional<Arena> memory_;
  std::optional<RegionAllocator> own_;  // on sim
  RegionAllocator& allocator_ = Armed();
  stream::Dtype dtype_ = stream::Dtype::kFp32;
};

TEST_F(StreamMemory, CopiesDueHasTheLabelOfEveryCopyOfAStep) {
  std::set<std::string> known, made;
  for (const bool queries_outer : {false, true}) {
    Listener listener(engine_.get());
    StreamContext::Options options = MixedOptions(71);
    if (queries_outer) options = QueriesOuter(options);
    options.copies = &listener;
    Step(options);
    for (const auto& due : stream::CopiesDue(options.stream, {})) {
      known.insert(due.label);
    }
    made.insert(listener.labels.begin(), listener.labels.end());
  }
  EXPECT_EQ(made, known);
}

TEST_F(StreamMemory, APhasesFirstFetchesComeBeforeThePreviousPhaseEnds) {
  for (const bool queries_outer : {false, true}) {
    Listener listener(engine_.get());
    StreamContext::Options options = Options(64, /*alpha=*/0);
    if (queries_outer) options = QueriesOuter(options);
    options.copies = &listener;
    const stream::StreamShape shape(options.stream);
    const int64_t chunks = shape.chunks();
    ASSERT_GT(shape.early(stream::Phase::kTokens).inputs, 0);
    ASSERT_GT(shape.early(stream::Phase::kAttention).blocks, 0);
    Step(options);
    EXPECT_LT(listener.Nth("saved rows", chunks),
              listener.Nth("dX out", chunks - 1));
    EXPECT_LT(listener.Nth("inner chunk", 0),
              listener.Nth("dO, dX out", chunks - 1));
  }
}

TEST_F(StreamMemory, NothingInHbmGrowsWithTheSequence) {
  Step(Options(48));  // one-time allocations of libraries
  const Bytes three_chunks = Step(Options(48));
  const Bytes twenty_chunks = Step(Options(320));
  // Only bookkeeping tensors and the labels' mask grow.
  EXPECT_LE(twenty_chunks, three_chunks + Bytes(1024));
}

TEST_F(StreamMemory, RingBytesAreWhatCreateAllocates) {
  for (StreamContext::Options options :
       {Options(71), MixedOptions(71), ResidentOptions(71),
        QueriesOuter(Options(71)), QueriesOuter(ResidentOptions(71))}) {
    options.host_size = stream::HostBytes(options.stream);
    const Arena arena(options.host_size, node_);
    options.host = arena.data();
    const Bytes before = allocator_.stats().used;
    auto context = StreamContext::Create(options);
    ASSERT_THAT(context, IsOk());
    const Bytes told =
        stream::RingBytes(options.stream) + stream::KeptBytes(options.stream);
    const Bytes used = allocator_.stats().used - before;
    EXPECT_GE(used, told);
    // On a GPU about ten blocks are rounded up to more than a slot's alignment.
    EXPECT_LT(used, told + (TestDevice().is_cpu() ? Bytes(1) : KiB(4)));
  }
  EXPECT_EQ(stream::KeptBytes(Options(71).stream), Bytes(0));
}

TEST_F(StreamMemory, AStepThatKeepsEverythingMovesNothing) {
  for (const StreamContext::Options& options :
       {ResidentOptions(135), QueriesOuter(ResidentOptions(135))}) {
    EXPECT_EQ(stream::HostBytes(options.stream), Bytes(0));
    const client::CopyStats before = engine_->stats();
    Step(options);
    const client::CopyStats after = engine_->stats();
    EXPECT_EQ(after.h2d, before.h2d);
    EXPECT_EQ(after.d2h, before.d2h);
  }
}

TEST_F(StreamMemory, KeptBytesAreTheFractionsOfTheirClasses) {
  int64_t kept = 0;
  const StreamContext::Options options = MixedOptions(128);
  const plan::RankProfile profile = stream::Profile(options.stream, {});
  for (const plan::SkeletalClass& c : profile.classes) {
    const auto f = options.stream.fractions.find(c.name);
    if (f == options.stream.fractions.end()) continue;
    kept += static_cast<int64_t>(
        f->second.keep * static_cast<double>(profile.kinds[0].layers *
                                             c.bytes_per_layer.count()));
  }
  EXPECT_GE(stream::KeptBytes(options.stream).count(), kept);
  EXPECT_LE(stream::KeptBytes(options.stream).count(), kept + 2 * 8 * 4 * 63)
      << "rounded up for each layer, chunk and class";
  // Fractional rows are rounded down; the reserve covers alignment.
  const StreamContext::Options odd = MixedOptions(135);
  EXPECT_LE(
      stream::KeptBytes(odd.stream).count(),
      kept * 135 / 128 + stream::Profile(odd.stream, {}).keep_reserve.count());
}

TEST_F(StreamMemory, ASmallerHostRegionIsRefused) {
  StreamContext::Options options = Options(71);
  options.host_size = stream::HostBytes(options.stream) - Bytes(1);
  const Arena arena(options.host_size, node_);
  options.host = arena.data();
  const int64_t has = options.host_size.count();
  EXPECT_THAT(
      StreamContext::Create(options).status(),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("needs " + std::to_string(has + 1) + " bytes"),
                     HasSubstr("region has " + std::to_string(has)))));
}

TEST_F(StreamMemory, ADeviceWithoutAttentionIsRefusedByName) {
  StreamContext::Options options = Options(71);
  options.device = at::Device(at::kCUDA, 1);
  EXPECT_THAT(StreamContext::Create(options),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cuda:1")));
}

TEST_F(StreamMemory, HostBytesShrinkWithAlpha) {
  EXPECT_LT(stream::HostBytes(Options(800, 0).stream),
            stream::HostBytes(Options(800, 1).stream));
}

// Expects that a plan from a calibration of two chunks and the tail fits a
// longer step.
void ExpectReplay(RegionAllocator& allocator,
                  const StreamContext::Options& whole,
                  const std::function<void(int64_t)>& step,
                  const std::function<std::vector<plan::SegmentPlan>(
                      const std::vector<plan::SegmentKind>&, Bytes*)>& place) {
  allocator.RecordSegments(true);
  step(stream::CalibrationLayout(whole.stream).seq_len());
  const std::vector<plan::SegmentKind> kinds = allocator.TakeRecorded();
  allocator.RecordSegments(false);
  EXPECT_GE(kinds.size(), 20u);
  Bytes peak;
  const auto plans = place(kinds, &peak);
  ASSERT_THAT(allocator.SetPlan(plans, kinds, peak), IsOk());
  step(whole.stream.layout.seq_len());
  EXPECT_EQ(allocator.stats().mismatches, 0);
  EXPECT_GT(allocator.stats().planned_allocations, 1000);
}

TEST_F(StreamMemory, ACalibrationsPlanIsReplayedWithoutMismatch) {
  ExpectReplay(
      allocator_, Options(135), [&](int64_t n) { Step(Options(n)); },
      SideBySide);
}

// The last group of the loss has whole chunks, a tail, or both.
TEST_F(StreamMemory, AnyGroupsOfTheLossAreReplayedWithoutMismatch) {
  for (const int64_t seq_len : {135, 151, 167}) {
    const auto options = [&](int64_t n) {
      StreamContext::Options three = Options(n);
      three.stream.loss_chunk_rows = 50;  // three chunks of 16 rows
      return three;
    };
    ASSERT_THAT(allocator_.SetPlan({}, {}, Bytes(0)), IsOk());
    ExpectReplay(
        allocator_, options(seq_len), [&](int64_t n) { Step(options(n)); },
        SideBySide);
  }
}

TEST_F(StreamMemory, SmallChunksShareALossGroup) {
  StreamContext::Options options = Options(192);
  options.stream.layout = stream::ChunkLayout(192, 8, 1);
  allocator_.RecordSegments(true);
  Step(options);
  for (const plan::SegmentKind& kind : allocator_.TakeRecorded()) {
    if (kind.name == "loss.full") {
      EXPECT_EQ(kind.executions, 192 / 32);
    }
    EXPECT_NE(kind.name, "loss.tail");
  }
}

TEST_F(StreamMemory, ACalibrationsPlanIsReplayedWithoutMismatchInBf16) {
  dtype_ = stream::Dtype::kBf16;
  ExpectReplay(
      allocator_, Options(135), [&](int64_t n) { Step(Options(n)); },
      SideBySide);
}

TEST_F(StreamMemory, QueriesOuterIsReplayedWithoutMismatch) {
  ExpectReplay(
      allocator_, QueriesOuter(MixedOptions(135)),
      [&](int64_t n) { Step(QueriesOuter(MixedOptions(n))); }, SideBySide);
}

TEST_F(StreamMemory, KeptEverythingIsReplayedWithoutMismatch) {
  ExpectReplay(
      allocator_, ResidentOptions(135),
      [&](int64_t n) { Step(ResidentOptions(n)); }, SideBySide);
}

TEST_F(StreamMemory, FractionsByClassAreReplayedWithoutMismatch) {
  ExpectReplay(
      allocator_, MixedOptions(135), [&](int64_t n) { Step(MixedOptions(n)); },
      SideBySide);
}

TEST_F(StreamMemory, TheKeepReserveCoversTheGrowthOfRingsAndTransients) {
  Step(Options(135, 1));
  const Bytes recorded = Step(Options(135, 1));
  const Bytes reserve =
      stream::Profile(Options(135, 1).stream, {}).keep_reserve;
  for (const StreamContext::Options& options :
       {Options(135, 0), Options(135, 0.5), MixedOptions(135)}) {
    EXPECT_LE(Step(options) - stream::KeptBytes(options.stream),
              recorded + reserve);
  }
}

TEST_F(StreamMemory, AProbeTakesTheMemoryOfAWholeStep) {
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
    const plan::RankProfile profile = stream::Profile(options.stream, kinds);
    double host = double(profile.host_fixed.count());
    for (const plan::SkeletalClass& c : profile.classes) {
      host += double(profile.kinds[0].layers * c.bytes_per_layer.count()) *
              (c.must_swap ? 1 : alpha);
    }
    EXPECT_GE(host, double(stream::HostBytes(options.stream).count()));
  }
  const StreamContext::Options mixed = MixedOptions(135);
  const plan::RankProfile mixed_profile = stream::Profile(mixed.stream, kinds);
  double host = double(mixed_profile.host_fixed.count());
  for (const plan::SkeletalClass& c : mixed_profile.classes) {
    const auto f = mixed.stream.fractions.find(c.name);
    const double swap = c.must_swap ? 1
                        : f != mixed.stream.fractions.end()
                            ? f->second.swap
                            : mixed.stream.alpha;
    host += double(mixed_profile.kinds[0].layers * c.bytes_per_layer.count()) *
            swap;
  }
  EXPECT_GE(host, double(stream::HostBytes(mixed.stream).count()));
  // With a second per execution, a layer's seconds are its executions.
  auto timed = kinds;
  for (plan::SegmentKind& kind : timed) kind.seconds = 1;
  const auto profile = stream::Profile(Options(135).stream, timed);
  ASSERT_EQ(profile.segments.size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(profile.segments[i].executions, kinds[i].executions)
        << kinds[i].name;
  }
  // 9 chunks have 9 qkv segments, 9 post segments and 45 blocks. Backward also
  // makes q, k and v again.
  EXPECT_EQ(profile.kinds[0].forward_layer_seconds, 9 + 9 + 45);
  EXPECT_EQ(profile.kinds[0].backward_layer_seconds, 9 + 9 + 45 + 9);
}

// The copies in move the profile's bytes, the copies out at most its bytes.
TEST_F(StreamMemory, AStepMovesTheProfilesBytes) {
  for (const auto& [alpha, options] :
       {std::pair(0.0, Options(135, 0)), std::pair(1.0, Options(135, 1)),
        std::pair(0.0, QueriesOuter(Options(135, 0))),
        std::pair(1.0, QueriesOuter(Options(135, 1)))}) {
    const plan::RankProfile profile = stream::Profile(options.stream, {});
    int64_t in = (profile.kinds[0].forward_h2d_fixed +
                  profile.kinds[0].backward_h2d_fixed)
                     .count();
    int64_t out = (profile.kinds[0].forward_d2h_fixed +
                   profile.kinds[0].backward_d2h_fixed)
                      .count();
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
    // The loss and the embedding's backward each fetch a hidden state. The
    // embedding and the loss each send a hidden state.
    EXPECT_EQ((after.h2d - before.h2d).count(),
              profile.kinds[0].layers * in + 2 * hidden);
    EXPECT_LE((after.d2h - before.d2h).count(),
              profile.kinds[0].layers * out + 2 * hidden);
    EXPECT_GE((after.d2h - before.d2h).count(),
              profile.kinds[0].layers * out * 8 / 10);
  }
}

// Rows are whole, so the bytes are exact. Kept rows are not moved, and dropped
// rows are not fetched.
TEST_F(StreamMemory, AStepFetchesExactlyItsFractions) {
  const StreamContext::Options options = MixedOptions(128);
  const plan::RankProfile profile = stream::Profile(options.stream, {});
  double in = double(
      (profile.kinds[0].forward_h2d_fixed + profile.kinds[0].backward_h2d_fixed)
          .count());
  double hidden = 0;
  for (const plan::SkeletalClass& c : profile.classes) {
    if (c.name == "layer_input") hidden = double(c.bytes_per_layer.count());
    if (c.traffic_in_fixed) continue;
    const auto f = options.stream.fractions.find(c.name);
    const double swap = c.must_swap ? 1
                        : f != options.stream.fractions.end()
                            ? f->second.swap
                            : options.stream.alpha;
    in += swap * double(c.bytes_per_layer.count());
  }
  const client::CopyStats before = engine_->stats();
  Step(options);
  const client::CopyStats after = engine_->stats();
  EXPECT_EQ(double((after.h2d - before.h2d).count()),
            double(profile.kinds[0].layers) * in + 2 * hidden);
}

}  // namespace
}  // namespace sluice::runtime
