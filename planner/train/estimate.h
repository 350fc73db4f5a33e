// The cost model's estimate of one training step.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "planner/train/settings.h"

namespace sluice::planner::train {

// Seconds of one pass of one layer over one sequence, on one GPU.
struct PassTimes {
  double matmul = 0;
  double attention = 0;
  double elementwise = 0;
  double network = 0;   // exposed part only
  double copy_out = 0;  // total on the host link, hidden or exposed
  double copy_in = 0;
  double exposed_copy = 0;  // in both directions
  double compute() const { return matmul + attention + elementwise; }
  double total() const { return compute() + network + exposed_copy; }
};

// Seconds of a layer. Recomputation comes before backward.
struct LayerTimes {
  PassTimes forward, recompute, backward;
  double total() const {
    return forward.total() + recompute.total() + backward.total();
  }
};

// Parts of a step, in seconds. Their sum is the step.
struct Breakdown {
  double attention = 0;
  double matmul = 0;
  double elementwise = 0;
  double recompute = 0;
  double exposed_copy = 0;
  double exposed_network = 0;
  double gradient_sync = 0;
  double reorganisation = 0;  // of a caching allocator
  double pipeline_bubble = 0;
  double optimizer = 0;
  double total() const;
};

// Peak bytes by class, on the GPU that needs the most.
struct GpuMemory {
  double states = 0;     // weights, gradients, optimizer
  double skeletal = 0;   // tensors that backward needs of the forward
  double transient = 0;  // of one layer
  double logits = 0;     // logits and the loss's other tensors
  double buffers = 0;    // rings, gathered weights, ids
  double total() const {
    return states + skeletal + transient + logits + buffers;
  }
};

enum class Reason { kOk, kGpuMemory, kHostMemory, kHeads, kStep };
// Returns "ok", "gpu_memory", "host_memory", "heads" or "step_time".
std::string_view ReasonName(Reason reason);

struct Estimate {
  bool fits = false;
  Reason reason = Reason::kOk;
  // If a step does not fit, the figures below are only for comparing settings
  // and are not an estimate. With kHeads, no such division exists.
  double mfu = 0;  // fraction, MEMO's definition
  double tokens_per_gpu_per_s = 0;
  double step_s = 0;
  double gpu_peak_bytes = 0;
  double gpu_usable_bytes = 0;
  double host_bytes_per_node = 0;
  double host_usable_bytes = 0;
  Settings settings;
  Breakdown breakdown;
  GpuMemory memory;
  LayerTimes layer;  // of one layer and one sequence
  // A caching allocator would reorganise here, as measured on another machine.
  // The cost on this machine is unknown and not charged.
  bool reorganisation_unknown = false;
};

// Estimates a step of one method. `settings` must be complete (alpha and chunk
// too).
Estimate EstimateStep(const Request& request, const Settings& settings);

// Returns the FLOPs that MFU counts for a sequence: 6 s P + 6 n w s^2, w the
// query width (MEMO section 5.2: causal attention as half, no recomputation).
double CountedFlops(const ModelShape& model, double seq_len);

}  // namespace sluice::planner::train
