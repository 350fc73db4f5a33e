// What every rank of a node keeps on its GPU, swaps to host memory and
// recomputes: one exact LP over all of them (MEMO section 4.1, generalised).
// README.md has the rows.
//
// Bytes and seconds are doubles: fractions of tensors are no whole bytes, and
// a problem is solved within 1e-9 relative anyway.
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
  // Host memory that some ranks hold together at most, beside NUMA nodes.
  struct Host {
    std::string name;
    double budget_bytes = 0;
  };
  enum class Must { kNothing, kKeep, kSwap, kRecompute };
  struct Tensor {
    std::string name;
    size_t kind = 0;   // position among the rank's kinds
    double bytes = 0;  // per layer of that kind
    // A layer, all tokens, earlier tensors present; none: cannot be recomputed.
    std::optional<double> recompute_s;
    Must must = Must::kNothing;
    // Its copies are counted in the rank's `…_fixed_bytes`, whatever is
    // chosen: it costs host memory only.
    bool traffic_in_fixed = false;
    bool can_keep = true;
    plan::GivenFractions given;
    // Tensors that say the same here, of whichever ranks, have the same
    // fractions; empty: its own.
    std::string shared;
  };
  // Layers of a rank that are alike. What one of them copies hides behind its
  // own compute.
  struct Kind {
    std::string name = plan::kOneKind;
    int64_t layers = 0;
    int64_t resident_layers = 0;
    // Windows: a layer's measured wall times, waits included; above 0, but for
    // a backward that copies nothing (of frozen layers).
    double forward_layer_s = 0;
    double backward_layer_s = 0;
    // Traffic per layer, whatever is chosen.
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
    double host_fixed_bytes = 0;  // whatever is chosen
    std::vector<Kind> kinds = {Kind{}};
    std::vector<Tensor> tensors;  // of all kinds
  };
  std::vector<Link> links;
  std::vector<Numa> numa;
  std::vector<Host> hosts;
  std::vector<Rank> ranks;
};

// kHidden is kJoint without copies that show by choice.
enum class SwapPolicy { kJoint, kHidden, kMemo };

// In the order in which they are minimised.
struct SwapObjective {
  double step_s = 0;       // the slowest rank's step
  double recompute_s = 0;  // of all ranks
  double moved_bytes = 0;  // both ways, of all ranks
};

struct RankSwap {
  double added_s = 0;  // recomputation in its step
  double step_s = 0;
  double stall_s = 0;    // its compute waits for copies, beside step_s
  bool slowest = false;  // no step of a rank is longer
  std::vector<plan::TokenFractions> tensors;
};

// A row that says what the node or a GPU has.
struct CapacityRow {
  enum class Kind { kLinkD2h, kLinkH2d, kLinkTotal, kHost, kLimit, kGpu };
  Kind kind = Kind::kHost;
  size_t index = 0;     // of the link, NUMA node, host limit or rank
  double used = 0;      // bytes/s of a link, else bytes
  double capacity = 0;  // likewise
  bool binds = false;   // no room left, within 1e-6
  // How much more is needed, in units of `capacity` (of 1 GiB or 1 GB/s where
  // that is 0): of memory where nothing fits, of a link also where copies
  // overload it.
  double excess = 0;
  // What one more GB/s or GiB buys: by how much each objective falls when the
  // whole is solved again. Later ones may rise when earlier ones fall.
  SwapObjective one_more;
};

struct NodeSwapResult {
  bool feasible = false;  // under the policy that was asked for
  // Whether all copies hide under the windows. Links are no refusal: where
  // copies overload them the step takes `stall_s` more than the objective says.
  // They do where what must be copied is too much, to which nothing is added
  // then, or where that is faster than to recompute.
  bool in_time = true;
  double stall_s = 0;
  // Copies show by choice: what the slowest rank's step, with its stalls, would
  // be without.
  std::optional<double> hidden_step_s;
  std::optional<SwapObjective> joint;
  struct Memo {
    SwapObjective objective;
    std::vector<double> alpha;  // of each rank
  };
  std::optional<Memo> memo;
  std::string no_memo;  // why not, one line
  // Of the policy asked for, in the problem's order; no ranks where nothing
  // fits, the rows are those of the least excess then.
  std::vector<RankSwap> ranks;
  std::vector<CapacityRow> rows;
};

// "link pcie0 d2h", "host of NUMA node 0", a host limit's name, "GPU of rank
// 3".
std::string RowName(const NodeSwapProblem& problem, const CapacityRow& row);
// "ffn", or with its kind "moe/ffn".
std::string TensorName(const NodeSwapProblem::Rank& rank,
                       const NodeSwapProblem::Tensor& tensor);

// InvalidArgument with the path of what is wrong: `ranks[3].tensors[1].bytes:
// -1 is negative`.
absl::Status CheckNodeSwap(const NodeSwapProblem& problem);

// InvalidArgument as CheckNodeSwap; Internal when Clp gives up. Equal for
// every order of ranks, links and NUMA nodes.
absl::StatusOr<NodeSwapResult> PlanNodeSwap(
    const NodeSwapProblem& problem, SwapPolicy policy = SwapPolicy::kJoint);

}  // namespace sluice::planner
