// The cost model's estimate of one training step.
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
  double copy_out = 0;  // total copy time, hidden or exposed
  double copy_in = 0;
  double exposed_copy = 0;  // in both directions
  double compute() const { return matmul + attention + elementwise; }
  double total() const { return compute() + network + exposed_copy; }
  // Adds the other pass without its copies.
  void operator+=(const PassTimes& other) {
    matmul += other.matmul;
    attention += other.attention;
    elementwise += other.elementwise;
    network += other.network;
  }
};

// Seconds of a layer's passes. Recomputation comes before backward.
struct LayerTimes {
  PassTimes forward, recompute, backward;
  double total() const {
    return forward.total() + recompute.total() + backward.total();
  }
};

// The parts of a step, in seconds, which add up to the step.
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

// Peak bytes by use, on the GPU that needs most.
struct GpuMemory {
  double states = 0;     // weights, gradients, optimizer
  double skeletal = 0;   // tensors that forward keeps for backward
  double transient = 0;  // of one layer
  double logits = 0;     // logits and the loss's other tensors
  double buffers = 0;    // rings, gathered weights, ids
  double total() const {
    return states + skeletal + transient + logits + buffers;
  }
};

enum class Reason { kOk, kGpuMemory, kHostMemory, kHeads, kStep };
std::string_view ReasonName(Reason reason);  // "ok", "gpu_memory", …

struct Estimate {
  bool fits = false;
  Reason reason = Reason::kOk;
  // If the step does not fit, the speeds below serve only to compare settings
  // and are no estimate.
  double mfu = 0;  // a fraction, by MEMO's definition
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
  // Whether a caching allocator would reorganise at this size, as on MEMO's
  // machine, at a cost that is unknown on this machine and not included.
  bool reorganisation_unknown = false;
};

// Estimates a step. `settings` must be complete, including alpha and chunk.
Estimate EstimateStep(const Request& request, const Settings& settings);

// Returns the FLOPs that MFU counts for a sequence: 6 s P + 6 n w s^2, with the
// query width w (MEMO section 5.2: half of the square of causal attention, and
// no recomputation).
double CountedFlops(const ModelShape& model, double seq_len);

}  // namespace sluice::planner::train
