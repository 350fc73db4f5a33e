// Builds the columns and rows of the LP of README.md (internal to the planner).
//
// Thread safety: values.
#pragma once

#include <map>
#include <memory>
#include <vector>

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
  Form Keep() const {
    Form keep = Form::Of(1.0);
    keep.Add(swap, -1);
    keep.Add(recompute, -1);
    return keep;
  }
};

// The LP, and the meaning of its columns and rows.
struct JointRows {
  std::vector<CapacityRow> capacities;
  std::vector<std::vector<TensorForms>> tensors;  // rank, tensor
  LinearProgram program;
  // Columns: the sum of excesses and the three objectives. Each has a unit that
  // makes its value about 1.
  int excess_sum = 0, step = 0, recompute = 0, moved = 0;
  std::vector<int> excess;        // excess column of each capacity
  std::vector<int> capacity_row;  // row of each capacity
  std::vector<double> row_scale;  // bytes or bytes/s per unit of the row
  // A rank's copy rate on its links, in units of its slowest link's capacity.
  struct Rate {
    int column = -1;
    double unit = 0;
    // One column per kind of layers. The constraint is that `column` is at
    // least each of them. Empty for a rank with one kind.
    std::vector<int> kinds;
  };
  std::vector<std::map<CapacityRow::Kind, Rate>> rates;  // rank, direction
  int kinds_sum = 0;  // sum of the kinds' columns
  // The units of the columns step, recompute and moved.
  SwapObjective unit;
  std::unique_ptr<LinearSolver> solver;
};

// Builds the LP. `problem` must have passed CheckNodeSwap. `stalls`: passes may
// be longer than their windows, and `step` and `recompute` count the additional
// time. Columns and rows are the same with and without stalls.
JointRows MakeJointRows(const NodeSwapProblem& problem, bool stalls);

}  // namespace sluice::planner
