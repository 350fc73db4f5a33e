// The states of a run: weights in the model's type, gradients in fp32, and
// AdamW's states under ZeRO-1, dealt to the ranks in buckets.
//
// The flat buffer has parts, which forward reads one after the other: embedding
// and learned positions, each layer, final norm and head. Each part is cut into
// rounds, and a round into one bucket per rank, so a reduce-scatter sums a
// round's gradients and an all-gather brings its weights.
//
// AdamW's states lie in HBM, or in host memory. From there they come to HBM in
// units, through a ring: a unit is consecutive elements of one rank within one
// part.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stream/options.h"
#include "proto/base/units.h"

namespace sluice::stream {

// Elements of the parts of the flat buffer, in its order.
std::vector<int64_t> PartSizes(const ModelShape& model);

// A contiguous run of the flat buffer with one owner, in elements.
struct Bucket {
  int64_t offset = 0;
  int64_t size = 0;
  int owner = 0;
};

inline constexpr int64_t kBucketElements = (64 << 20) / 4;

// Consecutive buckets of one part, of ranks 0, 1, and so on.
struct Round {
  int64_t part = 0;
  std::vector<Bucket> buckets;
  bool even = false;  // a bucket for each rank, all of one size
};

// In the order of the flat buffer. Buckets have at most kBucketElements.
std::vector<Round> CutRounds(const ModelShape& model, int ranks);
std::vector<Bucket> CutBuckets(const ModelShape& model, int ranks);

// How checkpoints were dealt before: in buckets of at most 1 MiB, bucket b of
// rank b % ranks. Format 2: equal ones, as many for each rank, up to rounding.
// Format 1: whole ones, which leave a small model to rank 0.
enum class FormerDealing { kEven, kMebibytes };
std::vector<Bucket> CutFormerBuckets(int64_t elements, int ranks,
                                     FormerDealing dealing);

// Elements of rank's buckets.
int64_t OwnedElements(const ModelShape& model, int ranks, int rank);

// Collectives of a step's optimizer: a reduce-scatter and an all-gather for
// each even round, a reduce and a broadcast for each bucket of the others, and
// the sum of the norm's squares.
int64_t OptimizerCollectives(const ModelShape& model, int ranks);

enum class StatePlace { kHbm, kHost };
const char* Name(StatePlace place);  // "hbm", "host"

// AdamW's tensors in fp32: m and v, and of narrow weights a master copy.
int StateTensors(Dtype dtype);

inline constexpr Bytes kMostUnitBytes = MiB(64);
inline constexpr int kStateSlots = 4;  // of the ring

// Elements of a slot of the ring, at most kMostUnitBytes of all tensors: no
// unit of the rank has more.
int64_t SlotElements(const ModelShape& model, Dtype dtype, int ranks, int rank);

// A run of a rank's own elements that is one copy.
struct StateUnit {
  int64_t part = 0;
  int64_t begin = 0, size = 0;  // in the rank's own elements
};
std::vector<StateUnit> CutStates(const ModelShape& model, Dtype dtype,
                                 int ranks, int rank);

// One rank's bytes as the trainer allocates them, each a flat buffer of whole
// lines: `optimizer` is what AdamW has in HBM, the ring where its states are in
// host memory; `host` is leased there, in addition to a step's.
struct StateBytes {
  Bytes weights, gradients, optimizer, host;
  Bytes hbm() const { return weights + gradients + optimizer; }
};
StateBytes CountStates(const ModelShape& model, Dtype dtype, int ranks,
                       int rank, StatePlace place = StatePlace::kHbm);

}  // namespace sluice::stream
