// The LP of README.md over all ranks of a node (internal to the planner).
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

// Thread safety: one owner.
class JointProgram {
 public:
  // `problem` has passed CheckNodeSwap and outlives the program. `hidden`: the
  // solved program without stalls, for SolveWithStalls instead of Solve.
  explicit JointProgram(const NodeSwapProblem& problem,
                        const JointProgram* hidden = nullptr);
  ~JointProgram();

  struct Answer {
    bool feasible = false;       // in memory
    bool in_time = false;        // and on the links
    NodeFractions fractions;     // those of the least excess where infeasible
    std::vector<double> excess;  // of each row of CapacitiesOf, in its units
  };
  // `known`: of a plan that fits, where there is one; the answer's objectives
  // are not behind it by so much as a digit of the LP's.
  absl::StatusOr<Answer> Solve(const SwapObjective* known);

  // Lets copies take longer than the windows that hide them; the objectives
  // count by how much. `hidden` is the answer of Solve, so its memory is
  // feasible. NotFound: its digits leave no answer.
  absl::StatusOr<NodeFractions> SolveWithStalls(const Answer& hidden);

  // With one more unit (OneMore) of a row, solved again from the bases of the
  // solution.
  // Only after a solution; nullopt: no objective falls.
  absl::StatusOr<std::optional<NodeFractions>> SolveWithOneMore(size_t row);

 private:
  // The least excess of all rows; NotFound where held ones do not allow it.
  absl::StatusOr<double> LeastExcess(Answer* answer);
  // Solves the objectives from `first` on; those before it stay at their bound.
  absl::Status Stages(const SwapObjective* known, size_t first = 0);
  absl::Status BoundKinds(const Answer& answer);
  NodeFractions Fractions() const;

  const NodeSwapProblem& problem_;
  const std::unique_ptr<JointRows> rows_;
  // An objective's bound in the solution, the price of each capacity row, and
  // the basis that it ended with.
  struct Stage {
    double most = 0;
    std::vector<double> prices;
    LinearSolver::Basis basis;
  };
  std::vector<Stage> solved_;
};

}  // namespace sluice::planner
