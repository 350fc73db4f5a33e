// The objects that one rank's run works on.
// Thread safety: one thread.
#pragma once

#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"
#include "client/torch/run/run_watch.h"
#include "client/torch/stream/pending_weights.h"

namespace sluice::runtime {

// A step's weights; the trainer owns them.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelTensors& weights() = 0;
  virtual ModelTensors& gradients() = 0;  // fp32; steps add to them
  virtual void ZeroGradients() = 0;
  virtual PendingWeights* pending() { return nullptr; }  // null: up to date
};

// All pointers outlive the objects made with this context.
struct RunContext {
  RankMemory* memory = nullptr;
  Collectives* collectives = nullptr;  // null: one rank
  WeightSource* weights = nullptr;
  RunWatch* watch = nullptr;  // null: none
};

}  // namespace sluice::runtime
