// What a rank tells the planner: the profile of one training step.
//
// A profile is made by running one chunk of each segment kind in a
// provisional lease. It goes to the daemon as a sealed memfd (codec.h).
// Plain data; thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"
#include "proto/plan/fractions.h"

namespace sluice::plan {

// One buffer of a trace: alive in [lower, upper) of the trace's own time.
struct Buffer {
  int64_t id = 0;
  int64_t lower = 0;
  int64_t upper = 0;
  Bytes size;
};

// The allocator requests of one piece of work, in request order. `buffers[k]`
// is the k-th allocation request; replay relies on that order. A buffer not
// freed inside the trace has upper = `end`.
struct Trace {
  std::vector<Buffer> buffers;
  int64_t end = 0;
  Bytes alignment{64};
};

// A repeated unit of work: "qkv.forward.full", "block.diagonal.backward.tail",
// "ffn.forward.full", "loss.full". FPDT's layer has O(u^2) requests, so the
// unit is the segment, not the layer.
struct SegmentKind {
  std::string name;
  Trace trace;
  double seconds = 0;      // measured, one execution, without waits
  int64_t executions = 0;  // in one step of this rank
};

// A skeletal tensor class of one layer (MEMO section 4.1): made in forward,
// needed in backward.
struct SkeletalClass {
  std::string name;              // "layer_input", "attention_output", "ffn_up"
  Bytes bytes_per_layer;         // this rank, all its tokens
  double recompute_seconds = 0;  // per layer, all tokens, from its input
  bool must_swap = false;        // layer input, attention output, lse
  // Its copies are in the rank's `…_fixed` counts already, whatever alpha is
  // (k and v go out in forward and are re-read in any case); its swapped
  // fraction costs host memory only.
  bool traffic_in_fixed = false;
  // All ranks of a job must keep and swap the same fractions: q, k, v in head
  // layout, whose rows come from all ranks.
  bool shared = false;
  // The runtime can hold it on the GPU.
  bool can_keep = false;
  GivenFractions given;
  // Why they were asked for, where an earlier round chose them; given back.
  std::string why;
};

// Everything the node needs to plan one rank.
struct RankProfile {
  // Which job of the request; (job, rank) is unique in it. Ranks of one job
  // share what `SkeletalClass::shared` says.
  int64_t job = 0;
  Rank rank;
  DeviceIndex gpu;
  NumaIndex numa;
  int64_t layers = 0;
  // Layers whose skeletal tensors never leave the GPU (MEMO's last two
  // layers; 0 for the chunk-streamed layer).
  int64_t resident_layers = 0;
  std::vector<SegmentKind> segments;
  std::vector<SkeletalClass> classes;
  // Windows: one layer's measured forward and backward, waits included.
  double forward_layer_seconds = 0;
  double backward_layer_seconds = 0;
  // Traffic per layer that does not depend on what is chosen (k/v re-reads,
  // dq).
  Bytes forward_d2h_fixed;
  Bytes forward_h2d_fixed;
  Bytes backward_d2h_fixed;
  Bytes backward_h2d_fixed;
  // Host memory of this rank that does not depend on what is chosen (one
  // layer's scratch, the last layer's output, dX).
  Bytes host_fixed;
  // The most host memory that its user lets the rank have; unset: whatever the
  // node gives.
  std::optional<Bytes> host_limit;
  // What the rank's GPU lease has beside states and rounding buffers; 0: not
  // told, the plan is not checked against it and keeps nothing.
  Bytes transient_capacity;
  // The part of `transient_capacity` that kept rows may not use, because
  // buffers recorded with other fractions may be smaller than those of the
  // plan.
  Bytes keep_reserve;
  // MEMO's policy, asked for by the user: all free classes swap this fraction
  // and keep nothing, but for what a class asks for itself; negative: the
  // planner chooses.
  double alpha = -1;
  // Its fractions were chosen by an earlier round: each free class asks for
  // keep and swap. Only memory is planned for it, and nobody else's plan
  // changes on its account. `transient_capacity` is what is left beside the
  // rows that it keeps.
  bool settled = false;
  // Settled: what limited that choice (RankPlan::alpha_limited_by); given back.
  std::string limited_by;
};

}  // namespace sluice::plan
