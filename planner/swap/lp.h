// Linear programs (internal to the planner); solved by Clp in clp.cc.
#pragma once

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::planner {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

struct LinearProgram {
  struct Column {
    double lower = 0;
    double upper = kUnbounded;
  };
  struct Row {
    double lower = -kUnbounded;
    double upper = kUnbounded;
    std::vector<std::pair<int, double>> terms;  // column, coefficient
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  // Both return the new one's index.
  int AddColumn(const Column& column) {
    columns.push_back(column);
    return static_cast<int>(columns.size()) - 1;
  }
  int AddRow(Row row) {
    rows.push_back(std::move(row));
    return static_cast<int>(rows.size()) - 1;
  }
};

// One program solved again and again, each time from the basis of the last:
// what lexicographic stages and "one more" need. Rows and bounds hold within
// 1e-9; scale them so that values and coefficients lie near 1.
// Thread safety: one owner; different solvers may run at once.
class LinearSolver {
 public:
  explicit LinearSolver(const LinearProgram& program);
  ~LinearSolver();
  LinearSolver(const LinearSolver&) = delete;

  void SetColumn(int column, double lower, double upper);
  void SetRowUpper(int row, double upper);

  // The least value of a column. NotFound when there is none (infeasible or
  // unbounded), Internal when Clp gives up.
  absl::StatusOr<double> Minimise(int column);
  // At the last optimum.
  double Value(int column) const;
  // By how much the last optimum falls per unit of the row's upper bound, at
  // most; 0: the optimum does not fall, whatever the bound is raised to.
  double Price(int row) const;

  // Columns and rows that are between their bounds at the last optimum.
  using Basis = std::vector<unsigned char>;
  Basis basis() const;
  // Starts the next solution from `basis`, of a program with the same columns
  // and rows. After other bounds than it was optimal for, the dual simplex is
  // the shorter way.
  void StartFrom(const Basis& basis, bool dual);

 private:
  struct Model;
  std::unique_ptr<Model> model_;
};

}  // namespace sluice::planner
