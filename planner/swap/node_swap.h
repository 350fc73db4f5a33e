// Plans what every rank of a node keeps on its GPU, swaps to host memory and
// recomputes, by one exact LP over all ranks (MEMO section 4.1, generalised).
// README.md lists the rows.
//
// Bytes and seconds are doubles, because fractions of tensors are not whole
// bytes. Thread safety: pure functions; Clp runs under one lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan/profile.h"

namespace sluice::planner {

// One entry per tensor of a rank, or per class of its profile.
using Fractions = std::vector<plan::TokenFractions>;

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
  // A limit on the host memory of some ranks, besides the NUMA nodes' budgets.
  struct Host {
    std::string name;
    double budget_bytes = 0;
  };
  enum class Must { kNothing, kKeep, kSwap, kRecompute };
  struct Tensor {
    std::string name;
    size_t kind = 0;   // index into the rank's kinds
    double bytes = 0;  // per layer of that kind
    // Seconds per layer to recompute the tensor for all tokens from the tensors
    // before it. Unset if it cannot be recomputed.
    std::optional<double> recompute_s;
    Must must = Must::kNothing;
    // `…_fixed_bytes` count the tensor's copies; a swap costs only host memory.
    bool traffic_in_fixed = false;
    bool can_keep = true;
    plan::GivenFractions given;
    // Tensors with the same `shared`, on any rank, get the same fractions.
    // Empty if the tensor is not shared.
    std::string shared;
  };
  // Equal layers of a rank. A layer's copies overlap with its compute only.
  struct Kind {
    std::string name = plan::kOneKind;
    int64_t layers = 0;
    int64_t resident_layers = 0;
    // Windows: the measured wall times of a layer's passes, including waits.
    // Above 0, but backward_layer_s may be 0 if backward copies nothing, as in
    // frozen layers.
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

// kHidden is kJoint, but does not expose copies even if that is faster.
enum class SwapPolicy { kJoint, kHidden, kMemo };

// The objectives, in the order in which they are minimised.
struct SwapObjective {
  double step_s = 0;       // the slowest rank's step
  double recompute_s = 0;  // sum over all ranks
  double moved_bytes = 0;  // in both directions, sum over all ranks
};

struct RankSwap {
  double added_s = 0;  // seconds of recomputation in the rank's step
  double step_s = 0;
  double stall_s = 0;    // waits for copies, in addition to step_s
  bool slowest = false;  // no other rank's step is longer
  Fractions tensors;
};

// A row of the LP that limits a capacity.
struct CapacityRow {
  enum class Kind { kLinkD2h, kLinkH2d, kLinkTotal, kHost, kLimit, kGpu };
  Kind kind = Kind::kHost;
  size_t index = 0;     // index of the link, NUMA node, host limit or rank
  double used = 0;      // bytes/s if the row is a link's, else bytes
  double capacity = 0;  // in the same unit as `used`
  bool binds = false;   // full within 1e-6
  // Missing capacity as a fraction of `capacity` (of 1 GiB or 1 GB/s if
  // `capacity` is 0). Set for memory if no plan fits, for a link also if copies
  // overload it.
  double excess = 0;
  // By how much each objective falls if the row gets one more GB/s or GiB.
  // Negative if an objective rises because an earlier one falls.
  SwapObjective one_more;
};

struct NodeSwapResult {
  bool feasible = false;  // under the requested policy
  // Whether the windows hide all copies. False if mandatory copies overload a
  // link, or if exposing copies is faster than recomputing. The step then takes
  // `stall_s` longer than `joint` says.
  bool in_time = true;
  double stall_s = 0;
  // Set if the plan exposes copies because that is faster: the slowest rank's
  // step, including stalls, in the kHidden plan.
  std::optional<double> hidden_step_s;
  std::optional<SwapObjective> joint;
  struct Memo {
    SwapObjective objective;
    std::vector<double> alpha;  // one per rank
  };
  std::optional<Memo> memo;
  std::string no_memo;  // the reason in one line, if memo is unset
  // The plan of the requested policy, in the problem's order. If nothing fits,
  // `ranks` is empty and `rows` are those of the least excess.
  std::vector<RankSwap> ranks;
  std::vector<CapacityRow> rows;
};

// Returns "link pcie0 d2h", "host of NUMA node 0", "GPU of rank 3", or a host
// limit's name.
std::string RowName(const NodeSwapProblem& problem, const CapacityRow& row);
// Returns "ffn", or "moe/ffn" if the rank's kinds have names.
std::string TensorName(const NodeSwapProblem::Rank& rank,
                       const NodeSwapProblem::Tensor& tensor);

// InvalidArgument has the path of the wrong field:
// `ranks[3].tensors[1].bytes: -1 is negative`.
absl::Status CheckNodeSwap(const NodeSwapProblem& problem);

// Plans the node. The order of ranks, links and NUMA nodes does not affect the
// plan. InvalidArgument: CheckNodeSwap's. Internal: Clp failed.
absl::StatusOr<NodeSwapResult> PlanNodeSwap(
    const NodeSwapProblem& problem, SwapPolicy policy = SwapPolicy::kJoint);

}  // namespace sluice::planner
