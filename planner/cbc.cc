// The one file that uses CBC and Clp.
//
// CBC is not re-entrant (two models solved in two threads fail at start-up,
// coin-or/Cbc #332), so one lock covers both.
#include <coin/Clp_C_Interface.h>
#include <fmt/format.h>

#include <mutex>
#include <vector>

#include "planner/lp.h"

namespace sluice::planner {
namespace {

std::mutex& SolverMutex() {
  static std::mutex mutex;
  return mutex;
}

// Rows in the column-major form that Clp takes.
struct ColumnMajor {
  std::vector<CoinBigIndex> starts;
  std::vector<int> rows;
  std::vector<double> values;

  explicit ColumnMajor(const LinearProgram& program) {
    std::vector<std::vector<std::pair<int, double>>> columns(
        program.columns.size());
    for (size_t r = 0; r < program.rows.size(); ++r) {
      for (const auto& [column, value] : program.rows[r].terms) {
        columns[static_cast<size_t>(column)].emplace_back(r, value);
      }
    }
    for (const auto& column : columns) {
      starts.push_back(static_cast<CoinBigIndex>(rows.size()));
      for (const auto& [row, value] : column) {
        rows.push_back(row);
        values.push_back(value);
      }
    }
    starts.push_back(static_cast<CoinBigIndex>(rows.size()));
  }
};

double ClpBound(double bound) {
  return bound == kUnbounded ? 1e30 : bound == -kUnbounded ? -1e30 : bound;
}

void Load(const LinearProgram& program, Clp_Simplex* model) {
  const ColumnMajor matrix(program);
  std::vector<double> lower, upper, profit, row_lower, row_upper;
  for (const LinearProgram::Column& column : program.columns) {
    lower.push_back(ClpBound(column.lower));
    upper.push_back(ClpBound(column.upper));
    profit.push_back(column.profit);
  }
  for (const LinearProgram::Row& row : program.rows) {
    row_lower.push_back(ClpBound(row.lower));
    row_upper.push_back(ClpBound(row.upper));
  }
  Clp_loadProblem(model, static_cast<int>(program.columns.size()),
                  static_cast<int>(program.rows.size()), matrix.starts.data(),
                  matrix.rows.data(), matrix.values.data(), lower.data(),
                  upper.data(), profit.data(), row_lower.data(),
                  row_upper.data());
  Clp_setOptimizationDirection(model, -1);  // maximise
}

}  // namespace

absl::StatusOr<std::vector<double>> Maximise(const LinearProgram& program) {
  const std::lock_guard<std::mutex> lock(SolverMutex());
  Clp_Simplex* model = Clp_newModel();
  Clp_setLogLevel(model, 0);
  Load(program, model);
  Clp_primal(model, 0);
  const int status = Clp_status(model);
  const double* values = Clp_primalColumnSolution(model);
  std::vector<double> result(values, values + program.columns.size());
  Clp_deleteModel(model);
  switch (status) {
    case 0:
      return result;
    case 1:
      return absl::NotFoundError("the linear program is infeasible");
    case 2:
      return absl::NotFoundError("the linear program is unbounded");
    default:
      return absl::InternalError(
          fmt::format("Clp stopped with status {}", status));
  }
}

}  // namespace sluice::planner
