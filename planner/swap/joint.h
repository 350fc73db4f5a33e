// Solves the LP of README.md over all ranks of a node (internal to the
// planner).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/swap/lp.h"
#include "planner/swap/node_swap.h"
#include "planner/swap/swap_accounting.h"

namespace sluice::planner {

struct JointRows;

// Builds and solves the LP of one problem.
//
// Thread safety: one owner.
class JointProgram {
 public:
  // `problem` must have passed CheckNodeSwap and outlive the program. `hidden`
  // is given if SolveWithStalls will be called instead of Solve: the program
  // that Solve has solved without stalls.
  explicit JointProgram(const NodeSwapProblem& problem,
                        const JointProgram* hidden = nullptr);
  ~JointProgram();

  struct Answer {
    bool feasible = false;    // a plan fits the memory
    bool in_time = false;     // and its copies fit the links
    NodeFractions fractions;  // those with the least excess if infeasible
    // of each row of CapacitiesOf, in the row's unit
    std::vector<double> excess;
  };
  // Solves the program without stalls. `known`: the objectives of another plan
  // that fits, or null. The answer's objectives are never worse than `known`,
  // not even by rounding.
  absl::StatusOr<Answer> Solve(const SwapObjective* known);

  // Solves the program with copies that may take longer than their windows; the
  // objectives count the additional time. `hidden` is the answer of Solve, and
  // must be feasible. NotFound: rounding in `hidden` leaves no solution.
  absl::StatusOr<NodeFractions> SolveWithStalls(const Answer& hidden);

  // Solves again with the capacity of `row` raised by one unit (OneMore),
  // starting from the bases of the last solution, which must exist. Returns
  // nullopt if no objective falls.
  absl::StatusOr<std::optional<NodeFractions>> SolveWithOneMore(size_t row);

 private:
  // Minimises the sum of the rows' excesses. NotFound: excesses that are
  // already fixed allow no solution.
  absl::StatusOr<double> LeastExcess(Answer* answer);
  // Minimises the objectives from number `first` on. Earlier ones keep their
  // bounds.
  absl::Status Stages(const SwapObjective* known, size_t first = 0);
  absl::Status BoundKinds(const Answer& answer);
  NodeFractions Fractions() const;

  const NodeSwapProblem& problem_;
  const std::unique_ptr<JointRows> rows_;
  // One solved stage: the objective's bound, the price of each capacity row,
  // and the final basis.
  struct Stage {
    double most = 0;
    std::vector<double> prices;
    LinearSolver::Basis basis;
  };
  std::vector<Stage> solved_;
};

}  // namespace sluice::planner
