// Linear programs (internal to the planner); solved by Clp in cbc.cc.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::planner {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

struct LinearProgram {
  struct Column {
    double lower = 0;
    double upper = kUnbounded;
    double profit = 0;  // maximised
  };
  struct Row {
    double lower = -kUnbounded;
    double upper = kUnbounded;
    std::vector<std::pair<int, double>> terms;  // column, coefficient
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  // Returns the new column's index.
  int Add(const Column& column) {
    columns.push_back(column);
    return static_cast<int>(columns.size()) - 1;
  }
};

// The columns' values at an optimum. NotFound when there is none (infeasible
// or unbounded), Internal when the solver gives up. Scale rows and columns so
// that values and coefficients lie near 1.
absl::StatusOr<std::vector<double>> Maximise(const LinearProgram& program);

}  // namespace sluice::planner
