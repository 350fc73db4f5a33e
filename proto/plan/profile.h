// What a rank tells the planner: the profile of one training step.
//
// A profile is made by running one chunk of each segment kind in a
// provisional lease. It goes to the daemon as a sealed memfd (codec.h).
// Plain data; thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// The kind of all layers of a rank that tells none apart.
inline constexpr const char* kOneKind = "layer";

// Layers of a rank that are alike: dense or with experts, over a window or the
// whole row, frozen. What a layer copies hides behind that layer's own
// compute, since no more than two chunks are under way; so each kind has
// windows and traffic of its own.
struct LayerKind {
  std::string name = kOneKind;
  int64_t layers = 0;
  // Layers that keep their skeletal tensors on the GPU (MEMO's last two
  // layers; 0 for the chunk-streamed layer).
  int64_t resident_layers = 0;
  // Windows: one layer's measured forward and backward, waits included; 0 of
  // a pass that copies nothing (backward of what is frozen).
  double forward_layer_seconds = 0;
  double backward_layer_seconds = 0;
  // Traffic per layer that does not depend on what is chosen (k/v re-reads,
  // dq).
  Bytes forward_d2h_fixed;
  Bytes forward_h2d_fixed;
  Bytes backward_d2h_fixed;
  Bytes backward_h2d_fixed;
  // Layers that swap or recompute their skeletal tensors.
  int64_t moving_layers() const { return layers - resident_layers; }
};

// A skeletal tensor class of the layers of one kind (MEMO section 4.1): made in
// forward, needed in backward.
struct SkeletalClass {
  std::string name;              // "layer_input", "attention_output", "ffn_up"
  std::string kind = kOneKind;   // LayerKind::name
  Bytes bytes_per_layer;         // this rank, all its tokens
  double recompute_seconds = 0;  // per layer, all tokens, from its input
  bool must_swap = false;        // layer input, attention output, lse
  // Its copies are in the rank's `…_fixed` counts already, whatever alpha is
  // (k and v go out in forward and are re-read in any case); its swapped
  // fraction costs host memory only.
  bool traffic_in_fixed = false;
  // All ranks of a job must keep and swap the same fractions: q, k, v in head
  // layout, because their rows come from all ranks.
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
  // One or more, each name once.
  std::vector<LayerKind> kinds = {LayerKind{}};
  std::vector<SegmentKind> segments;
  std::vector<SkeletalClass> classes;
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
  // keep and swap. Only memory is planned for it, and no other rank's plan
  // changes on its account. `transient_capacity` is what is left beside the
  // rows that it keeps.
  bool settled = false;
  // Settled: what limited that choice (RankPlan::alpha_limited_by); given back.
  std::string limited_by;
};

// The position of the kind of that name; nullopt: there is none, which codec.h
// and the planner refuse.
std::optional<size_t> FindKind(const RankProfile& profile,
                               std::string_view name);
// The kind of one of the profile's classes, of a profile that was checked.
const LayerKind& KindOf(const RankProfile& profile,
                        const SkeletalClass& skeletal);
// What people read: "moe/ffn_up", or "ffn_up" where no kinds are told apart.
std::string FullName(const std::string& kind, const std::string& name);

}  // namespace sluice::plan
