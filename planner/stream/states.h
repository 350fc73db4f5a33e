// The states of a run: weights in the model's type, gradients in fp32, and
// AdamW's states under ZeRO-1, dealt to the ranks in buckets.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/options.h"
#include "proto/base/units.h"

namespace sluice::stream {

// A contiguous run of the flat buffer with one owner, in elements.
struct Bucket {
  int64_t offset = 0;
  int64_t size = 0;
  int owner = 0;
};

inline constexpr int64_t kBucketElements = (1 << 20) / 4;

// kEven: each rank gets the same number of equal buckets, up to rounding.
// kMebibytes: buckets of 1 MiB, which leave a small model to rank 0; so were
// checkpoints of format 1 dealt.
enum class Dealing { kEven, kMebibytes };

std::vector<Bucket> CutBuckets(int64_t elements, int ranks,
                               Dealing dealing = Dealing::kEven);

// Elements of rank's buckets.
int64_t OwnedElements(int64_t elements, int ranks, int rank);

// One rank's bytes in HBM, as the trainer allocates them: each a flat buffer
// of whole lines.
struct StateBytes {
  Bytes weights, gradients, optimizer;
  Bytes total() const { return weights + gradients + optimizer; }
};
StateBytes CountStates(const ModelShape& model, Dtype dtype, int ranks,
                       int rank);

}  // namespace sluice::stream
