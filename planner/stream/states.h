// The states of a run: weights in the model's type, gradients in fp32, and
// AdamW's states, which are divided among the ranks in buckets (ZeRO-1).
//
// Weights and gradients are flat buffers with the same parts, in the order in
// which forward reads them: embedding and learned positions, each layer, final
// norm and head. Each part is cut into rounds, and a round into one bucket per
// rank, so a reduce-scatter sums a round's gradients and an all-gather
// distributes its weights.
//
// AdamW's states lie in HBM or in host memory. From host memory they are copied
// to HBM in units, through a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/options.h"
#include "proto/base/units.h"

namespace sluice::stream {

// Returns the elements of each part of the flat buffer, in order.
std::vector<int64_t> PartSizes(const ModelShape& model);

// A contiguous run of the flat buffer, in elements, that belongs to one rank.
struct Bucket {
  int64_t offset = 0;
  int64_t size = 0;
  int owner = 0;
};

inline constexpr int64_t kBucketElements = (64 << 20) / 4;

// Consecutive buckets of one part, for ranks 0, 1, and so on.
struct Round {
  int64_t part = 0;
  std::vector<Bucket> buckets;
  bool even = false;  // one bucket per rank, all of the same size
};

// Returns the rounds in the order of the flat buffer. Buckets have at most
// kBucketElements.
std::vector<Round> CutRounds(const ModelShape& model, int ranks);
std::vector<Bucket> CutBuckets(const ModelShape& model, int ranks);

// How older checkpoints divide the elements into buckets of at most 1 MiB,
// where bucket b belongs to rank b % ranks.
enum class FormerDealing {
  kEven,      // format 2: equal buckets, up to rounding as many for each rank
  kMebibytes  // format 1: full buckets, so rank 0 has all of a small model
};
std::vector<Bucket> CutFormerBuckets(int64_t elements, int ranks,
                                     FormerDealing dealing);

int64_t OwnedElements(const ModelShape& model, int ranks, int rank);

enum class StatePlace { kHbm, kHost };
const char* Name(StatePlace place);  // "hbm", "host"

// Returns the number of AdamW's fp32 tensors: m and v, and a master copy if
// weights are narrower.
int StateTensors(Dtype dtype);

inline constexpr Bytes kMostUnitBytes = MiB(64);  // over all state tensors
inline constexpr int kStateSlots = 4;             // of the ring

// Returns the elements of a ring slot, which fits the rank's largest unit.
int64_t SlotElements(const ModelShape& model, Dtype dtype, int ranks, int rank);

// A run of a rank's own elements within one part, copied as a whole.
struct StateUnit {
  int64_t part = 0;
  int64_t begin = 0, size = 0;  // indices among the rank's own elements
};
std::vector<StateUnit> CutStates(const ModelShape& model, Dtype dtype,
                                 int ranks, int rank);

// The bytes of one rank's states, as the trainer allocates them: flat buffers
// of whole 64-byte lines. `optimizer` is AdamW's HBM: its states, or the ring
// if the states are in host memory. `host` is leased in addition to a step's
// host memory.
struct StateBytes {
  Bytes weights, gradients, optimizer, host;
  Bytes hbm() const { return weights + gradients + optimizer; }
};
StateBytes CountStates(const ModelShape& model, Dtype dtype, int ranks,
                       int rank, StatePlace place = StatePlace::kHbm);

}  // namespace sluice::stream
