// AdamW with ZeRO-1: every rank holds all weights and gradients, but the
// optimizer's states of only its own buckets.
//
// The flat buffers are cut into equal buckets of at most 1 MiB of fp32, as many
// for each rank, bucket b owned by rank b % ranks (planner/stream/states.h). A
// step sums each bucket's gradient to its owner, clips by the global norm, lets
// the owner update, and broadcasts the new weights. The states are fp32: m, v
// and, where the weights are bf16, a master copy of them.
//
// Gradients arrive as sums over tokens already divided by the global number
// of labels, so they are summed over ranks, not averaged.
//
// Errors: a failed collective's status. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/ranks/collectives.h"
#include "client/train/optimizer/flat_model.h"
#include "planner/stream/states.h"

namespace sluice::train {

struct AdamWOptions {
  double lr = 1e-3;
  int64_t warmup = 10;
  double clip = 1.0;  // 0: none
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

// Linear warm-up to `lr`, then constant. `step` counts from 0.
double LearningRate(const AdamWOptions& options, int64_t step);

class AdamW {
 public:
  // Allocates this rank's states where the weights are, from c10's current
  // allocator there. All
  // references outlive the optimizer. `collectives` may be null: one rank.
  AdamW(const AdamWOptions& options, FlatModel* weights, FlatModel* gradients,
        runtime::Collectives* collectives);

  // Sums gradients to their owners; returns the global norm, for which the host
  // waits once. Gradients of buckets of others are spoilt.
  absl::StatusOr<double> ReduceGradients();
  // Updates the weights on all ranks. `norm` is ReduceGradients()'s.
  absl::Status Update(int64_t step, double norm);

  // This rank's states, for checkpoints: one fp32 tensor each over its own
  // buckets in order; `master` is undefined for fp32 weights.
  struct States {
    at::Tensor m, v, master;
  };
  States& states() { return states_; }
  const std::vector<stream::Bucket>& buckets() const { return buckets_; }

 private:
  struct Piece {  // of one tensor, inside one owned bucket
    at::Tensor target, weight, gradient, m, v;
    bool decays;
  };
  void MakePieces();
  void UpdateOwned(int64_t step);

  AdamWOptions options_;
  FlatModel* weights_;
  FlatModel* gradients_;
  runtime::Collectives* collectives_;
  int rank_;
  std::vector<stream::Bucket> buckets_;
  States states_;
  std::vector<Piece> pieces_;
  at::Tensor step_;  // AdamW's own count, as its kernel wants it
};

}  // namespace sluice::train
