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

  // AddColumn and AddRow return the new index.
  int AddColumn(const Column& column) {
    columns.push_back(column);
    return static_cast<int>(columns.size()) - 1;
  }
  int AddRow(Row row) {
    rows.push_back(std::move(row));
    return static_cast<int>(rows.size()) - 1;
  }
};

// Solves one program repeatedly, each time from the last basis: for several
// objectives in turn, and with changed bounds. Rows and bounds hold within
// 1e-11, so scale the program to values and coefficients near 1. Thread safety:
// none; different solvers may run concurrently.
class LinearSolver {
 public:
  explicit LinearSolver(const LinearProgram& program);
  ~LinearSolver();
  LinearSolver(const LinearSolver&) = delete;

  void SetColumn(int column, double lower, double upper);
  void SetRowUpper(int row, double upper);

  // Minimises a column and returns its value. NotFound: infeasible or
  // unbounded. Internal: Clp failed.
  absl::StatusOr<double> Minimise(int column);
  // Returns a column's value at the last optimum.
  double Value(int column) const;
  // Returns the row's dual price: by how much, at most, the last optimum falls
  // per unit that is added to the row's upper bound.
  double Price(int row) const;

  // Clp's basis status of each column and row at the last optimum.
  using Basis = std::vector<unsigned char>;
  Basis basis() const;
  // Makes the next solve start from `basis`, which must be of a program with
  // the same columns and rows. With `dual` it uses the dual simplex, which is
  // faster if bounds have changed since the basis was optimal.
  void StartFrom(const Basis& basis, bool dual);

 private:
  struct Model;
  std::unique_ptr<Model> model_;
};

}  // namespace sluice::planner
