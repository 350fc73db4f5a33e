// The states of a run: weights in the model's type, gradients in fp32, and
// AdamW's states under ZeRO-1, dealt to the ranks in buckets.
//
// AdamW's states lie in HBM, or in host memory. From there they come to HBM in
// units, through a ring: a unit is consecutive buckets of one rank within one
// part of the model, and the parts are what forward reads one after the other.
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

enum class StatePlace { kHbm, kHost };
const char* Name(StatePlace place);  // "hbm", "host"

// AdamW's tensors in fp32: m and v, and of narrow weights a master copy.
int StateTensors(Dtype dtype);

// Elements of the parts of the flat buffer, in its order: embedding and learned
// positions, each layer, final norm and head.
std::vector<int64_t> PartSizes(const ModelShape& model);

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
