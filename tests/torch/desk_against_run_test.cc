// Compares planner/stream's predicted bytes with those of a real step: the
// region allocator's figures, the written memory and the recorded segments.
// Covers 200 random shapes; --gtest_filter='*/17' runs one shape.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "planner/stream/states.h"
#include "planner/stream/transients.h"
#include "proto/base/poison.h"
#include "tests/torch/measured_step.h"
#include "tests/torch/random_steps.h"

namespace sluice::runtime {
namespace {

constexpr uint64_t kShapes = 200;
// The largest prediction that passes, relative to the tallest recorded heap of
// transients.
constexpr double kMostTransients = 1.15;

// Returns the scratch bytes that oneDNN takes for a bf16 product of [64, inner]
// and [inner, 64].
Bytes PackedFor(int64_t inner) {
  const Arena memory(MiB(8));
  RegionAllocator allocator(at::kCPU, memory.data(), MiB(8));
  allocator.Arm();
  const at::Tensor left = at::zeros({inner, 64}, at::kBFloat16).t();
  const at::Tensor right = at::zeros({inner, 64}, at::kBFloat16);
  allocator.RecordSegments(true);
  {
    const SegmentScope segment(&allocator, "product");
    const at::Tensor product = at::mm(left, right);
  }
  const std::vector<plan::SegmentKind> kinds = allocator.TakeRecorded();
  const auto& buffers = kinds.front().trace.buffers;
  return buffers.size() > 1 ? buffers[1].size : Bytes(0);
}

bool HasAmx() {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpus((std::istreambuf_iterator<char>(file)), {});
  return cpus.find(" amx_bf16 ") != std::string::npos;
}

// How this CPU packs the operands of a bf16 product: by AMX's tiles, which the
// prediction counts; not at all; or by other blocks (AVX-512 alone), of at most
// `others` bytes, since oneDNN splits longer products.
struct Packing {
  bool by_tiles = false;
  Bytes others;
};

const Packing& PackingHere() {
  static const Packing packing = [] {
    if (PackedFor(64) == Bytes(0)) return Packing{};
    if (HasAmx()) return Packing{.by_tiles = true};
    return Packing{.others = PackedFor(2048)};
  }();
  return packing;
}

// Returns the bytes at the arena's end that are never written. The sums of the
// inner side are last in the arena. With queries outer the last chunk's sums
// stay in HBM, because its keys have only the diagonal block.
Bytes NeverSent(const stream::StreamShape& shape) {
  const int64_t last = shape.chunks() - 1;
  int64_t bytes = 0;
  for (const stream::Class which :
       {stream::Class::kKeyGradient, stream::Class::kValueGradient}) {
    const int64_t sums = shape.moved_bytes(which, last);
    if (sums > 0) bytes = stream::AlignSlot(sums);
  }
  return Bytes(bytes);
}

// Returns whether every slot of every ring gets its largest record. Assumes
// that nothing is poisoned: poison writes whole rings.
bool FillsItsRings(const stream::StreamShape& shape) {
  int64_t chunks = 0, groups = 0;
  for (int64_t m = 0; m < shape.chunks(); ++m) chunks += shape.full(m);
  for (const stream::LossGroup& group : shape.loss_groups()) {
    groups += group.full;
  }
  for (const stream::ClassTraits& c : stream::kClasses) {
    // The places of resident classes stay empty.
    if (shape.resident_from(c.which) < shape.chunks()) return false;
  }
  return chunks >= 2 && groups >= 2 &&
         chunks * (chunks - 1) / 2 >= shape.prefetch_depth;
}

class DeskAgainstRun : public ::testing::TestWithParam<uint64_t> {
 protected:
  DeskAgainstRun()
      : case_(RandomStep(GetParam())),
        rank_(static_cast<int>(GetParam() % uint64_t(case_.ranks))),
        options_(OptionsOf(case_, rank_)),
        run_(MeasureStep(case_, rank_, /*steps=*/1, place_)) {}

  void ExpectBuffers() const;
  // Returns the tallest recorded heap of transients.
  Bytes ExpectSegments() const;

  const stream::StatePlace place_ = GetParam() % 3 == 0
                                        ? stream::StatePlace::kHost
                                        : stream::StatePlace::kHbm;
  const StepCase case_;
  const int rank_;
  const stream::StreamOptions options_;
  const MeasuredStep run_;
  const stream::Kernels cpu_ = {.threads = at::get_num_threads(),
                                .packs_bf16 = PackingHere().by_tiles};
};

void DeskAgainstRun::ExpectBuffers() const {
  const stream::StreamShape shape(options_);
  EXPECT_EQ(stream::RingBytes(options_), run_.rings.size);
  EXPECT_EQ(stream::KeptBytes(options_), run_.kept.size);
  EXPECT_TRUE(run_.host_guard_intact);
  if (shape.chunks() > 1) {
    EXPECT_EQ(stream::HostBytes(options_),
              run_.host.written_end + NeverSent(shape));
  }
  if (PoisonsBuffers()) return;  // poison is written, too
  EXPECT_EQ(stream::KeptBytes(options_), run_.kept.written);
  if (FillsItsRings(shape)) {
    EXPECT_EQ(stream::RingBytes(options_), run_.rings.written_end);
  }
}

// In fp32 the bytes are equal. In bf16 the prediction counts oneDNN's panels at
// their largest, and does not count other packing.
Bytes DeskAgainstRun::ExpectSegments() const {
  Bytes tallest;
  for (const stream::SegmentTraits& segment : stream::kSegments) {
    Bytes peak;
    for (const plan::SegmentKind& kind : run_.kinds) {
      if (kind.name.starts_with(segment.name)) {
        peak = std::max(peak, PeakOf(kind.trace));
      }
    }
    const Bytes desk = stream::TransientBytes(options_, segment.which, cpu_);
    if (options_.dtype == stream::Dtype::kFp32) {
      EXPECT_EQ(desk, peak) << segment.name;
    } else {
      EXPECT_GE(desk + PackingHere().others, peak) << segment.name;
      EXPECT_LE(desk, peak + peak / 10 + KiB(4)) << segment.name;
    }
    tallest = std::max(tallest, peak);
  }
  return tallest;
}

TEST_P(DeskAgainstRun, PredictsTheBytesOfAStep) {
  SCOPED_TRACE(ToString(case_));
  EXPECT_EQ(stream::CountStates(case_.model, options_.dtype, case_.ranks, rank_,
                                place_)
                .hbm(),
            run_.states);
  ExpectBuffers();
  const auto tallest = static_cast<double>(ExpectSegments().count());
  const auto desk =
      static_cast<double>(stream::TransientBytes(options_, cpu_).count());
  const auto others = static_cast<double>(PackingHere().others.count());
  EXPECT_GE(desk + others, tallest);
  EXPECT_LE(desk, kMostTransients * tallest);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeskAgainstRun,
                         ::testing::Range(uint64_t{0}, kShapes));

}  // namespace
}  // namespace sluice::runtime
