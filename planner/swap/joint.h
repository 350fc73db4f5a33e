// The two policies of a node (internal to the planner): the LP of README.md
// over all ranks, and MEMO's one alpha per rank.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/swap/lp.h"
#include "planner/swap/node_swap.h"
#include "planner/swap/swap_accounting.h"

namespace sluice::planner {

// A linear form: constant + sum of coefficient * column.
struct Form {
  double constant = 0;
  std::map<int, double> terms;

  void Add(const Form& other, double weight) {
    constant += weight * other.constant;
    for (const auto& [column, value] : other.terms) {
      terms[column] += weight * value;
    }
  }
  static Form Of(int column) { return {0, {{column, 1}}}; }
  static Form Of(double constant) { return {constant, {}}; }
  double At(const LinearSolver& solver) const {
    double value = constant;
    for (const auto& [column, weight] : terms) {
      value += weight * solver.Value(column);
    }
    return value;
  }
};

struct TensorForms {
  Form swap;
  Form recompute;
};

// The LP, and the meaning of its columns and rows.
struct JointRows {
  std::vector<CapacityRow> capacities;
  std::vector<std::vector<TensorForms>> tensors;  // by rank and tensor
  LinearProgram program;
  // Columns: the sum of excesses and the three objectives. Each has a unit that
  // makes its value about 1.
  int excess_sum = 0, step = 0, recompute = 0, moved = 0;
  SwapObjective unit;             // units of the objectives' columns
  std::vector<int> excess;        // excess column of each capacity
  std::vector<int> capacity_row;  // row of each capacity
  std::vector<double> row_scale;  // bytes or bytes/s per unit of the row
  // A rank's copy rate on its links, in units of its slowest link's capacity.
  struct Rate {
    int column = -1;
    double unit = 0;
    // One column per kind of layers; `column` is at least the largest. Empty
    // for a rank with one kind.
    std::vector<int> kinds;
  };
  std::vector<std::map<CapacityRow::Kind, Rate>> rates;  // by rank, direction
  int kinds_sum = 0;  // column of the sum of all Rate::kinds; 0 without them
  std::unique_ptr<LinearSolver> solver;
};

// Builds the LP. With `stalls`, passes may take longer than their windows, and
// `step` and `recompute` count the additional time. Columns and rows do not
// depend on `stalls`.
JointRows MakeJointRows(const NodeSwapProblem& problem, bool stalls);

// Builds and solves the LP of one problem. Thread safety: none.
class JointProgram {
 public:
  // `problem` must have passed CheckNodeSwap and outlive the program. Without
  // `hidden`, the program is for Solve. With `hidden`, which Solve has solved,
  // the program is for SolveWithStalls and starts from the basis of `hidden`.
  explicit JointProgram(const NodeSwapProblem& problem,
                        const JointProgram* hidden = nullptr);

  struct Answer {
    bool feasible = false;    // a plan fits the memory
    bool in_time = false;     // also its copies fit the links
    NodeFractions fractions;  // with the least excess if infeasible
    // The excess of each row of CapacitiesOf, in the row's unit.
    std::vector<double> excess;
  };
  // Solves the program without stalls. `known` has the objectives of another
  // plan that fits, or is null. The answer is never worse than that plan, not
  // even by rounding.
  absl::StatusOr<Answer> Solve(const SwapObjective* known);

  // Solves the program with copies that may take longer than their windows.
  // `hidden` is the answer of Solve, and must be feasible. NotFound: rounding
  // in `hidden` leaves no solution.
  absl::StatusOr<NodeFractions> SolveWithStalls(const Answer& hidden);

  // Solves again with the capacity of `row` raised by one unit (OneMore),
  // starting from the bases of the last solution, which must exist. Returns
  // nullopt if no objective falls.
  absl::StatusOr<std::optional<NodeFractions>> SolveWithOneMore(size_t row);

 private:
  // Minimises the sum of the rows' excesses. NotFound: excesses that are
  // already fixed allow no solution.
  absl::StatusOr<double> LeastExcess(Answer* answer);
  // Minimises the objectives from number `first` on.
  absl::Status Stages(const SwapObjective* known, size_t first = 0);
  absl::Status BoundKinds(const Answer& answer);
  NodeFractions Fractions() const;

  const NodeSwapProblem& problem_;
  JointRows rows_;
  // One solved stage: the objective's bound, the price of each capacity row,
  // and the final basis.
  struct Stage {
    double most = 0;
    std::vector<double> prices;
    LinearSolver::Basis basis;
  };
  std::vector<Stage> solved_;
};

// ---- MEMO's policy (memo.cc) -----------------------------------------------

struct MemoPlan {
  std::vector<double> alpha;  // one per rank
  NodeFractions fractions;
  // The reason in one line if no alpha fits. The other fields are empty then.
  std::string refusal;
};

// Divides every shared capacity evenly among its ranks, and gives each rank the
// largest alpha that fits its part. Keeps on the GPU only what must be kept.
MemoPlan PlanMemo(const NodeSwapProblem& problem);

}  // namespace sluice::planner
