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

// Thread safety: one owner.
class JointProgram {
 public:
  // `problem` must have passed CheckNodeSwap and outlive the program. `hidden`:
  // the solved program without stalls, if SolveWithStalls and not Solve is
  // called.
  explicit JointProgram(const NodeSwapProblem& problem,
                        const JointProgram* hidden = nullptr);
  ~JointProgram();

  struct Answer {
    bool feasible = false;       // memory suffices
    bool in_time = false;        // and links suffice
    NodeFractions fractions;     // with the least excess if infeasible
    std::vector<double> excess;  // of each row of CapacitiesOf, in its units
  };
  // `known`: objectives of a plan that fits, if there is one. The answer's
  // objectives are not worse than those, not even by rounding.
  absl::StatusOr<Answer> Solve(const SwapObjective* known);

  // Allows copies to take longer than their windows; the objectives count the
  // excess. `hidden` is the answer of Solve, so its memory is feasible.
  // NotFound: rounding in `hidden` leaves no solution.
  absl::StatusOr<NodeFractions> SolveWithStalls(const Answer& hidden);

  // Solves again with one more unit (OneMore) of a row, from the bases of the
  // solution. Call it only after a solution. Returns nullopt if no objective
  // falls.
  absl::StatusOr<std::optional<NodeFractions>> SolveWithOneMore(size_t row);

 private:
  // Minimises the excess of all rows. NotFound: the fixed excesses do not allow
  // a solution.
  absl::StatusOr<double> LeastExcess(Answer* answer);
  // Minimises the objectives from `first` on; earlier ones stay at their bound.
  absl::Status Stages(const SwapObjective* known, size_t first = 0);
  absl::Status BoundKinds(const Answer& answer);
  NodeFractions Fractions() const;

  const NodeSwapProblem& problem_;
  const std::unique_ptr<JointRows> rows_;
  // An objective's bound in the solution, the price of each capacity row, and
  // the final basis.
  struct Stage {
    double most = 0;
    std::vector<double> prices;
    LinearSolver::Basis basis;
  };
  std::vector<Stage> solved_;
};

}  // namespace sluice::planner
