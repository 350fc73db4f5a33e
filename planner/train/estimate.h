// What the cost model says of one training step.
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
  double network = 0;   // not hidden
  double copy_out = 0;  // on the link to host memory, hidden or not
  double copy_in = 0;
  double exposed_copy = 0;  // of both
  double compute() const { return matmul + attention + elementwise; }
  double total() const { return compute() + network + exposed_copy; }
};

// What a layer costs. Recomputation comes before backward.
struct LayerTimes {
  PassTimes forward, recompute, backward;
  double total() const {
    return forward.total() + recompute.total() + backward.total();
  }
};

// Parts of a step, in seconds; their sum is the step.
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

// Bytes of the GPU that needs most, at its peak, by class.
struct GpuMemory {
  double states = 0;     // weights, gradients, optimizer
  double skeletal = 0;   // what backward needs of the forward
  double transient = 0;  // of one layer
  double logits = 0;     // and what the loss makes of them
  double buffers = 0;    // rings, gathered weights, ids
  double total() const {
    return states + skeletal + transient + logits + buffers;
  }
};

enum class Reason { kOk, kGpuMemory, kHostMemory, kHeads, kStep };
// "ok", "gpu_memory", "host_memory", "heads", "step_time".
std::string_view ReasonName(Reason reason);

struct Estimate {
  bool fits = false;
  Reason reason = Reason::kOk;
  // If a step does not fit, the figures below only compare settings and are not
  // an answer; with kHeads there is no such division at all.
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
  LayerTimes layer;  // one layer, one sequence
  // A caching allocator would reorganise here, as was measured on another
  // machine. The cost on this machine is unknown and not charged.
  bool reorganisation_unknown = false;
};

// The model of one method with settings that are whole (alpha and chunk too).
Estimate EstimateStep(const Request& request, const Settings& settings);

// FLOPs that MFU counts, a sequence: 6 s P + 6 n w s^2, w the query width
// (MEMO section 5.2: causal attention as half, no recomputation).
double CountedFlops(const ModelShape& model, double seq_len);

}  // namespace sluice::planner::train
