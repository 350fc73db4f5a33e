// The optimizer's interface to a step. When a step begins, parts of the weights
// may still wait for their update: forward asks for each part before it reads
// it. Backward reports which parts' gradients it has finished.
//
// Parts are numbered in forward's order: 0 is the embedding and learned
// positions, 1 + i is layer i, layers + 1 is the final norm and the head.
//
// Thread safety: the compute thread only.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace sluice::runtime {

class PendingWeights {
 public:
  virtual ~PendingWeights() = default;
  // Updates all parts up to `part`, in compute's order, on all ranks together.
  virtual absl::Status AwaitPart(int64_t) { return absl::OkStatus(); }
  // Advances later parts as far as possible without waiting. Each rank calls it
  // by itself, between pieces of compute.
  virtual absl::Status Advance() { return absl::OkStatus(); }
  // This sequence adds nothing more to the gradients of `part` and later ones.
  // All ranks call it together.
  virtual absl::Status PartIsDone(int64_t) { return absl::OkStatus(); }
};

}  // namespace sluice::runtime
