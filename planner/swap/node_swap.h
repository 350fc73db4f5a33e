// Plans what every rank of a node keeps on its GPU, swaps to host memory and
// recomputes: one exact LP over all ranks (MEMO section 4.1, generalised).
// README.md has the rows.
//
// Bytes and seconds are doubles, because fractions of tensors are not whole
// bytes and a problem is solved within 1e-9 relative.
//
// Thread safety: pure functions; Clp runs under one lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan/fractions.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

struct NodeSwapProblem {
  struct Link {
    std::string name;
    double h2d_bytes_per_s = 0;
    double d2h_bytes_per_s = 0;
    std::optional<double> total_bytes_per_s;  // both directions together
  };
  struct Numa {
    int64_t id = 0;
    double host_budget_bytes = 0;
  };
  // A limit of the host memory that some ranks hold together, in addition to
  // the limits of NUMA nodes.
  struct Host {
    std::string name;
    double budget_bytes = 0;
  };
  enum class Must { kNothing, kKeep, kSwap, kRecompute };
  struct Tensor {
    std::string name;
    size_t kind = 0;   // index into the rank's kinds
    double bytes = 0;  // per layer of that kind
    // Seconds per layer for all tokens, with earlier tensors present. Unset:
    // cannot be recomputed.
    std::optional<double> recompute_s;
    Must must = Must::kNothing;
    // Its copies are counted in the kind's `…_fixed_bytes`, whatever is chosen,
    // so swapping it only costs host memory.
    bool traffic_in_fixed = false;
    bool can_keep = true;
    plan::GivenFractions given;
    // Tensors with the same name here, on any rank, have the same fractions.
    // Empty: not shared.
    std::string shared;
  };
  // Equal layers of a rank. Copies of a layer overlap with its own compute.
  struct Kind {
    std::string name = plan::kOneKind;
    int64_t layers = 0;
    int64_t resident_layers = 0;
    // Windows: a layer's measured wall times, waits included. They are above 0,
    // except for a backward that copies nothing (of frozen layers).
    double forward_layer_s = 0;
    double backward_layer_s = 0;
    // Traffic per layer that does not depend on the plan.
    double forward_d2h_fixed_bytes = 0;
    double forward_h2d_fixed_bytes = 0;
    double backward_d2h_fixed_bytes = 0;
    double backward_h2d_fixed_bytes = 0;
  };
  struct Rank {
    std::string name;
    int64_t numa = 0;
    std::vector<std::string> links;
    std::vector<std::string> hosts;
    double gpu_budget_bytes = 0;
    double host_fixed_bytes = 0;  // does not depend on the plan
    std::vector<Kind> kinds = {Kind{}};
    std::vector<Tensor> tensors;  // of all kinds
  };
  std::vector<Link> links;
  std::vector<Numa> numa;
  std::vector<Host> hosts;
  std::vector<Rank> ranks;
};

// kHidden is kJoint without plans that expose copies by choice.
enum class SwapPolicy { kJoint, kHidden, kMemo };

// The objectives, in the order in which they are minimised.
struct SwapObjective {
  double step_s = 0;       // the slowest rank's step
  double recompute_s = 0;  // of all ranks
  double moved_bytes = 0;  // both ways, of all ranks
};

struct RankSwap {
  double added_s = 0;  // recomputation in its step
  double step_s = 0;
  double stall_s = 0;    // time that compute waits for copies, not in step_s
  bool slowest = false;  // no other rank's step is longer
  std::vector<plan::TokenFractions> tensors;
};

// A row of the LP with a capacity of the node or of a GPU.
struct CapacityRow {
  enum class Kind { kLinkD2h, kLinkH2d, kLinkTotal, kHost, kLimit, kGpu };
  Kind kind = Kind::kHost;
  size_t index = 0;     // of the link, NUMA node, host limit or rank
  double used = 0;      // bytes/s of a link, or bytes
  double capacity = 0;  // likewise
  bool binds = false;   // full within 1e-6
  // Missing capacity, in units of `capacity` (1 GiB or 1 GB/s if that is 0): of
  // memory if no plan fits, of a link also if copies overload it.
  double excess = 0;
  // Gain from one more GB/s or GiB: by how much each objective falls if the
  // problem is solved again. Later objectives may rise when earlier ones fall.
  SwapObjective one_more;
};

struct NodeSwapResult {
  bool feasible = false;  // under the requested policy
  // Whether all copies are hidden by the windows. Overloaded links are no
  // reason to refuse: the step then takes `stall_s` more than the objective
  // says. Links are overloaded if the copies that must be made exceed them
  // (then no other copies are added), or if that is faster than recomputing.
  bool in_time = true;
  double stall_s = 0;
  // Set if copies are exposed by choice: the slowest rank's step, with its
  // stalls, without that choice.
  std::optional<double> hidden_step_s;
  std::optional<SwapObjective> joint;
  struct Memo {
    SwapObjective objective;
    std::vector<double> alpha;  // one per rank
  };
  std::optional<Memo> memo;
  std::string no_memo;  // the reason in one line, if memo is unset
  // The requested policy's plan, in the problem's order. If nothing fits,
  // `ranks` is empty and `rows` are those of the least excess.
  std::vector<RankSwap> ranks;
  std::vector<CapacityRow> rows;
};

// Returns "link pcie0 d2h", "host of NUMA node 0", a host limit's name, or "GPU
// of rank 3".
std::string RowName(const NodeSwapProblem& problem, const CapacityRow& row);
// Returns "ffn", or with its kind "moe/ffn".
std::string TensorName(const NodeSwapProblem::Rank& rank,
                       const NodeSwapProblem::Tensor& tensor);

// InvalidArgument: the message has the path of the wrong field:
// `ranks[3].tensors[1].bytes: -1 is negative`.
absl::Status CheckNodeSwap(const NodeSwapProblem& problem);

// Plans the node. InvalidArgument: as CheckNodeSwap. Internal: Clp failed. The
// result does not depend on the order of ranks, links and NUMA nodes.
absl::StatusOr<NodeSwapResult> PlanNodeSwap(
    const NodeSwapProblem& problem, SwapPolicy policy = SwapPolicy::kJoint);

}  // namespace sluice::planner
