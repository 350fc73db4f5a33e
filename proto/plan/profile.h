// The profile of one training step of a rank: the planner's input. A rank makes
// it by running one chunk of each segment kind in a provisional lease, and
// sends it to the daemon as a sealed memfd (codec.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/units.h"

namespace sluice::plan {

// The fractions of a class's tokens that a rank requests to keep on the GPU and
// to swap to host memory. The planner chooses those that are unset.
struct GivenFractions {
  std::optional<double> keep, swap;
  bool all() const { return keep && swap; }
  bool operator==(const GivenFractions&) const = default;
};

// Planned fractions, which sum to 1. A training run uses a third type
// (planner/stream/fractions.h).
struct TokenFractions {
  double keep = 0;
  double swap = 0;
  double recompute = 0;
  bool operator==(const TokenFractions&) const = default;
};

// A buffer, alive in [lower, upper) of the trace's time.
struct Buffer {
  int64_t id = 0;
  int64_t lower = 0;
  int64_t upper = 0;
  Bytes size;
};

// The allocator requests of one piece of work. `buffers[k]` is the k-th
// allocation; replay relies on that order. A buffer that is not freed inside
// the trace has upper = `end`.
struct Trace {
  std::vector<Buffer> buffers;
  int64_t end = 0;
  Bytes alignment{64};
};

// A repeated unit of work: "qkv.forward.full", "block.diagonal.backward.tail",
// "loss.full". A whole layer would be too large: with FPDT it has O(u^2)
// requests for u chunks.
struct SegmentKind {
  std::string name;
  Trace trace;
  double seconds = 0;      // measured, of one execution, without waits
  int64_t executions = 0;  // in one step of this rank
};

inline constexpr const char* kOneKind = "layer";  // name of a rank's only kind

// A group of equal layers of a rank: dense or with experts, with windowed or
// full attention, frozen. Each kind has its own copy windows and traffic: at
// most two chunks are in flight, so a layer's copies hide only behind that
// layer's compute.
struct LayerKind {
  std::string name = kOneKind;
  int64_t layers = 0;
  // Layers that keep their skeletal tensors on the GPU (MEMO's last two).
  int64_t resident_layers = 0;
  // Copy windows: measured seconds of one layer's passes, including waits. 0
  // for a pass that copies nothing, such as the backward of frozen layers.
  double forward_layer_seconds = 0;
  double backward_layer_seconds = 0;
  // Traffic per layer that does not depend on the plan (k/v re-reads, dq).
  Bytes forward_d2h_fixed;
  Bytes forward_h2d_fixed;
  Bytes backward_d2h_fixed;
  Bytes backward_h2d_fixed;
  int64_t moving_layers() const { return layers - resident_layers; }
};

// A class of skeletal tensors of one kind of layers (MEMO section 4.1): made in
// forward, needed in backward.
struct SkeletalClass {
  std::string name;             // "layer_input", "attention_output", "ffn_up"
  std::string kind = kOneKind;  // LayerKind::name
  Bytes bytes_per_layer;        // of this rank, for all its tokens
  // Seconds to recompute the class (all tokens) of one layer from its input.
  double recompute_seconds = 0;
  bool must_swap = false;  // set for layer input, attention output, lse
  // True if `…_fixed` of the kind contains this class's copies, which happen
  // whatever alpha is (k and v are copied out in forward and read again). The
  // swapped fraction then costs only host memory.
  bool traffic_in_fixed = false;
  // True if all ranks of a job must keep and swap the same fractions: for q, k
  // and v in head layout, because their rows come from all ranks.
  bool shared = false;
  bool can_keep = false;  // the runtime supports keeping it on the GPU
  GivenFractions given;
  // An earlier round's reason for its fractions, which the plan repeats.
  std::string why;
};

struct RankProfile {
  // The job's number in this request; (job, rank) is unique.
  int64_t job = 0;
  Rank rank;
  DeviceIndex gpu;
  NumaIndex numa;
  std::vector<LayerKind> kinds = {LayerKind{}};  // at least one
  std::vector<SegmentKind> segments;
  std::vector<SkeletalClass> classes;
  // Host memory of this rank that does not depend on the plan: one layer's
  // scratch, the last layer's output, dX.
  Bytes host_fixed;
  // The host memory that the user allows this rank, if limited.
  std::optional<Bytes> host_limit;
  // The room in the rank's GPU lease without states and rounding buffers. 0 if
  // unknown: the plan then keeps nothing.
  Bytes transient_capacity;
  // The part of `transient_capacity` that kept rows may not use, because the
  // plan's transient buffers may be larger than those recorded with other
  // fractions.
  Bytes keep_reserve;
  // MEMO's policy, if the user requests it: classes that request no fractions
  // of their own swap this fraction and keep nothing. Negative: the planner
  // chooses.
  double alpha = -1;
  // True if an earlier round chose the fractions: each class without must_swap
  // requests its keep and swap, and only memory is planned.
  // `transient_capacity` excludes the rows that the rank keeps.
  bool settled = false;
  // If settled: the earlier round's RankPlan::alpha_limited_by, which the plan
  // repeats.
  std::string limited_by;
};

std::optional<size_t> FindKind(const RankProfile& profile,
                               std::string_view name);
// Returns the kind of a class. REQUIRES: the profile was checked.
const LayerKind& KindOf(const RankProfile& profile,
                        const SkeletalClass& skeletal);
// Returns "moe/ffn_up", or "ffn_up" if there is one kind.
std::string FullName(const std::string& kind, const std::string& name);

}  // namespace sluice::plan
