#include "planner/stream/states.h"

#include <algorithm>

namespace sluice::stream {
namespace {

constexpr int64_t kLine = 64 / 4;  // in elements of fp32

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The last one may be smaller.
int64_t BucketSize(int64_t elements, int ranks, Dealing dealing) {
  if (dealing == Dealing::kMebibytes) return kBucketElements;
  const int64_t rounds =
      std::max<int64_t>(DivideUp(elements, kBucketElements * ranks), 1);
  // Of whole cache lines.
  return DivideUp(DivideUp(elements, rounds * ranks), kLine) * kLine;
}

// A tensor as the region allocator has it.
Bytes Lines(int64_t bytes) { return Bytes(DivideUp(bytes, 64) * 64); }

}  // namespace

std::vector<Bucket> CutBuckets(int64_t elements, int ranks, Dealing dealing) {
  const int64_t size = BucketSize(elements, ranks, dealing);
  std::vector<Bucket> buckets;
  for (int64_t at = 0; at < elements; at += size) {
    buckets.push_back({at, std::min(size, elements - at),
                       static_cast<int>(buckets.size()) % ranks});
  }
  return buckets;
}

int64_t OwnedElements(int64_t elements, int ranks, int rank) {
  const int64_t size = BucketSize(elements, ranks, Dealing::kEven);
  const int64_t buckets = DivideUp(elements, size);
  const int64_t own = buckets > rank ? DivideUp(buckets - rank, ranks) : 0;
  const bool last = own > 0 && (buckets - 1) % ranks == rank;
  return own * size - (last ? buckets * size - elements : 0);
}

StateBytes CountStates(const ModelShape& model, Dtype dtype, int ranks,
                       int rank) {
  const int64_t elements = model.trained_parameters();
  const int64_t owned = OwnedElements(elements, ranks, rank);
  // m and v; of narrow weights a copy in fp32; the kernel's count of steps.
  const int states = dtype == Dtype::kFp32 ? 2 : 3;
  return {.weights = Lines(elements * ElementBytes(dtype)),
          .gradients = Lines(elements * 4),
          .optimizer = states * Lines(owned * 4) + Lines(4)};
}

}  // namespace sluice::stream
