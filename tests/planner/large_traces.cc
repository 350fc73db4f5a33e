#include "tests/planner/large_traces.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

class Maker {
 public:
  Maker(int buffers, uint32_t seed) : buffers_(buffers), random_(seed) {
    trace_.alignment = Bytes(1);
  }

  plan::Trace Make(LargeSpec::Shape shape) {
    switch (shape) {
      case LargeSpec::Shape::kMixed:
        Mixed();
        break;
      case LargeSpec::Shape::kRandom:
        Random();
        break;
      case LargeSpec::Shape::kAllLive:
        AllLive();
        break;
      case LargeSpec::Shape::kChurn:
        Churn();
        break;
      case LargeSpec::Shape::kCompiler:
        Compiler();
        break;
      case LargeSpec::Shape::kChain:
        Chain("iopddl_G_1.csv");
        break;
      case LargeSpec::Shape::kSomasChain:
        Chain("somas_resnet50.csv");
        break;
    }
    for (plan::Buffer& b : trace_.buffers) {
      if (b.upper == 0) b.upper = now_ + 1;
    }
    trace_.end = now_ + 1;
    return std::move(trace_);
  }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_()) % n; }
  bool Full() const {
    return static_cast<int>(trace_.buffers.size()) >= buffers_;
  }

  size_t Malloc(int64_t bytes) {
    trace_.buffers.push_back({.id = static_cast<int64_t>(trace_.buffers.size()),
                              .lower = now_++,
                              .size = Bytes(bytes)});
    return trace_.buffers.size() - 1;
  }
  void Free(size_t k) { trace_.buffers[k].upper = now_++; }

  // Returns a size from a few KiB to tens of MiB. A third of the sizes are
  // powers of two.
  int64_t Size() {
    const int64_t base = int64_t{1} << (12 + Below(13));
    switch (Below(3)) {
      case 0:
        return base;
      case 1:
        return 512 * (1 + base * (1 + Below(7)) / 2048);
      default:
        return base + Below(static_cast<uint32_t>(base));
    }
  }

  void Mixed() {
    for (int k = 0; k < buffers_ / 20; ++k) Malloc(Size());  // weights
    while (!Full()) {
      std::vector<size_t> stack;  // activations of one pass
      for (int k = 0; k < 400 && !Full(); ++k) {
        stack.push_back(Malloc(Size()));
        Scratch();
      }
      while (!stack.empty()) {
        Scratch();
        // Frees the last buffer, or in one of ten cases one of the last eight.
        const size_t at = Below(10) == 0
                              ? stack.size() - 1 -
                                    Below(static_cast<uint32_t>(
                                        std::min(stack.size(), size_t{8})))
                              : stack.size() - 1;
        Free(stack[at]);
        stack.erase(stack.begin() + static_cast<ptrdiff_t>(at));
      }
    }
  }

  void Scratch() {
    std::vector<size_t> open;
    for (uint32_t k = Below(5); k > 0 && !Full(); --k) {
      open.push_back(Malloc(Size()));
      if (Below(2) == 0) {
        Free(open.front());
        open.erase(open.begin());
      }
    }
    for (const size_t k : open) Free(k);
  }

  void Random() {
    now_ = buffers_;
    for (int k = 0; k < buffers_; ++k) {
      const int64_t a = Below(static_cast<uint32_t>(buffers_));
      const int64_t b = Below(static_cast<uint32_t>(buffers_));
      trace_.buffers.push_back({.id = k,
                                .lower = std::min(a, b),
                                .upper = std::max(a, b) + 1,
                                .size = Bytes(Size())});
    }
  }

  // After one in three births and one in three frees, a small buffer is born
  // and freed, so that most lifetimes differ.
  void AllLive() {
    std::vector<size_t> all;
    while (static_cast<int>(all.size()) < buffers_ * 3 / 5) {
      all.push_back(Malloc(Size()));
      if (all.size() % 3 == 0) Free(Malloc(512));
    }
    std::shuffle(all.begin(), all.end(), random_);
    for (const size_t k : all) {
      Free(k);
      if (!Full() && k % 3 == 0) Free(Malloc(512));
    }
  }

  void Churn() {
    std::vector<size_t> live;
    for (int k = 0; k < buffers_ / 10; ++k) live.push_back(Malloc(Size()));
    while (!Full()) {
      size_t& one = live[Below(static_cast<uint32_t>(live.size()))];
      Free(one);
      one = Malloc(Size());
    }
  }

  // Returns m 2^k + 1 with m in 1 to 16, as a compiler's cost model yields.
  int64_t OddSize() {
    const auto power = std::min(Below(24), Below(28));
    return (int64_t{1} + Below(16)) * (int64_t{1} << power) + 1;
  }

  void Compiler() {
    const uint32_t steps = static_cast<uint32_t>(buffers_) * 2;
    now_ = steps;
    for (int k = 0; k < buffers_; ++k) {
      int64_t lower = 0;
      int64_t lifetime = 1 + Below(steps);
      if (k >= buffers_ / 6) {
        lower = Below(steps - 2);
        lifetime = 2 + Below(4 << Below(17));
      }
      trace_.buffers.push_back(
          {.id = k,
           .lower = lower,
           .upper = std::min<int64_t>(lower + lifetime, steps),
           .size = Bytes(OddSize())});
    }
  }

  void Chain(const std::string& of) {
    const plan::Trace link = ReadCsv(of);
    for (int64_t start = 0; !Full(); start += link.end / 3 + Below(200)) {
      const int64_t scale = 2 + Below(3);
      for (const plan::Buffer& b : link.buffers) {
        if (Full()) break;
        const int64_t lower = start + b.lower + Below(8);
        const int64_t size = (b.size.count() - 1) * scale / 2 + 1 + Below(2);
        trace_.buffers.push_back(
            {.id = static_cast<int64_t>(trace_.buffers.size()),
             .lower = lower,
             .upper = std::max(lower + 1, start + b.upper + Below(8)),
             .size = Bytes(size)});
        now_ = std::max(now_, trace_.buffers.back().upper);
      }
    }
  }

  const int buffers_;
  std::mt19937 random_;
  plan::Trace trace_;
  int64_t now_ = 0;
};

}  // namespace

plan::Trace GenerateLarge(const LargeSpec& spec, uint32_t seed) {
  return Maker(spec.buffers, seed).Make(spec.shape);
}

std::vector<LargeSpec> StandardLarge() {
  using Shape = LargeSpec::Shape;
  return {{"mixed-20k", 20000, Shape::kMixed},
          {"mixed-30k", 30000, Shape::kMixed},
          {"mixed-60k", 60000, Shape::kMixed},
          {"random-30k", 30000, Shape::kRandom},
          {"random-60k", 60000, Shape::kRandom},
          {"all-live-60k", 60000, Shape::kAllLive},
          {"churn-30k", 30000, Shape::kChurn},
          {"churn-70k", 70000, Shape::kChurn},
          {"compiler-30k", 30000, Shape::kCompiler},
          {"compiler-60k", 60000, Shape::kCompiler},
          {"chain-30k", 30000, Shape::kChain},
          {"chain-60k", 60000, Shape::kChain},
          {"somas-chain-20k", 20000, Shape::kSomasChain}};
}

}  // namespace sluice::planner
