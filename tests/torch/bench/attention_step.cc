#include "tests/torch/bench/attention_step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <string_view>

#include "proto/base/status.h"
#include "tests/bench/report.h"
#include "tests/torch/bench/bench_step.h"

namespace sluice::bench {
namespace {

using namespace sluice::runtime;

constexpr int kRounds = 7;
constexpr int64_t kTokens = 4096, kHeads = 4, kDim = 64;

// Forward and backward of whole attention in one call each, with everything
// resident.
class WholeAttention {
 public:
  WholeAttention() {
    for (at::Tensor* t : {&q_, &k_, &v_, &d_o_}) {
      *t = at::randn({kTokens, kHeads, kDim}).transpose(0, 1).unsqueeze(0);
    }
  }
  double Run() {
    return Seconds([&] {
      const auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          q_, k_, v_, /*dropout_p=*/0, /*is_causal=*/true);
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          d_o_, q_, k_, v_, o, lse, /*dropout_p=*/0, /*is_causal=*/true);
    });
  }

 private:
  at::Tensor q_, k_, v_, d_o_;
};

// A step of one layer. Its attention blocks are timed.
class StepAttention {
 public:
  StepAttention(Node& node, int64_t chunk)
      : allocator_(node.allocator()),
        step_(node, {.model = {.layers = 1,
                               .hidden = kHeads * kDim,
                               .heads = kHeads,
                               .kv_heads = kHeads,
                               .ffn = kHeads * kDim,
                               .vocab = 256},
                     .layout = stream::ChunkLayout(kTokens, chunk, 1)}) {}
  double Run() {
    allocator_.RecordTimeline(true);
    step_.Run();
    allocator_.RecordTimeline(false);
    double seconds = 0;
    for (const SegmentRun& run : allocator_.TakeRuns()) {
      if (run.kind.starts_with("block.")) seconds += run.end_s - run.start_s;
    }
    allocator_.TakeBlocks();
    return seconds;
  }

 private:
  RegionAllocator& allocator_;
  BenchStep step_;
};

}  // namespace

std::vector<Entry> AttentionOfSteps() {
  struct Judged {
    int64_t chunk;
    double target;
    std::unique_ptr<StepAttention> step;
    std::vector<double> ratios, seconds;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  Node node(MiB(192));
  WholeAttention whole;
  std::vector<double> whole_s;
  std::vector<Judged> judged;
  for (const auto& [chunk, target] : {std::pair{512, 1.10}, {1024, 1.05}}) {
    judged.push_back(
        {chunk, target, std::make_unique<StepAttention>(node, chunk), {}, {}});
    judged.back().step->Run();
  }
  whole.Run();
  for (int round = 0; round < bench::Rounds(kRounds); ++round) {
    whole_s.push_back(whole.Run());
    for (Judged& j : judged) {
      j.seconds.push_back(j.step->Run());
      j.ratios.push_back(j.seconds.back() / whole_s.back());
    }
  }
  std::vector<Entry> entries;
  for (const Judged& j : judged) {
    entries.push_back(
        {fmt::format("attention of a step, chunk {}", j.chunk),
         Median(j.ratios), "x whole call", j.target, true,
         fmt::format("blocks of a step of {} tokens, {} heads of {}, fp32, 1 "
                     "thread: {:.3f} s against {:.3f} s",
                     kTokens, kHeads, kDim, Median(j.seconds),
                     Median(whole_s))});
  }
  at::set_num_threads(threads);
  return entries;
}

}  // namespace sluice::bench
