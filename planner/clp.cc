// The only file that uses Clp.
#include <coin/Clp_C_Interface.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "planner/swap/lp.h"
#include "proto/base/mutex.h"

namespace sluice::planner {
namespace {

// Returns the lock for all solves. Clp's models are independent, but CoinUtils
// does not document that all of its parts are thread-safe. A solve takes
// milliseconds, so one lock costs little.
Mutex& ClpMutex() {
  static Mutex mutex;
  return mutex;
}

constexpr double kTolerance = 1e-11;

// The program's rows in the column-major form that Clp expects.
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

}  // namespace

struct LinearSolver::Model {
  Clp_Simplex* clp = nullptr;
  std::vector<double> lower, upper, cost, row_lower, row_upper;
  std::vector<double> values;
  bool dual = false;  // whether the next Solve uses the dual simplex

  // Resets the basis: every column at its lower bound, every row basic.
  void ForgetBasis() {
    constexpr unsigned char kBasic = 1, kAtLower = 3;
    std::vector<unsigned char> status(lower.size(), kAtLower);
    status.resize(lower.size() + row_lower.size(), kBasic);
    Clp_copyinStatus(clp, status.data());
  }

  // Returns Clp's status: 0 optimal, 1 infeasible, 2 unbounded.
  int Solve() {
    std::exchange(dual, false) ? Clp_dual(clp, 0) : Clp_primal(clp, 0);
    if (Clp_status(clp) == 0) return 0;
    // The last basis may lie on the edge of the new feasible region, where the
    // simplex can fail. So the initial basis is tried too.
    ForgetBasis();
    Clp_dual(clp, 0);
    if (Clp_status(clp) != 0) Clp_primal(clp, 0);
    return Clp_status(clp);
  }
};

LinearSolver::LinearSolver(const LinearProgram& program)
    : model_(std::make_unique<Model>()) {
  const MutexLock lock(ClpMutex());
  Model& m = *model_;
  for (const LinearProgram::Column& column : program.columns) {
    m.lower.push_back(ClpBound(column.lower));
    m.upper.push_back(ClpBound(column.upper));
  }
  for (const LinearProgram::Row& row : program.rows) {
    m.row_lower.push_back(ClpBound(row.lower));
    m.row_upper.push_back(ClpBound(row.upper));
  }
  m.cost.assign(m.lower.size(), 0);
  m.values.assign(m.lower.size(), 0);
  const ColumnMajor matrix(program);
  m.clp = Clp_newModel();
  Clp_setLogLevel(m.clp, 0);
  Clp_loadProblem(m.clp, static_cast<int>(m.lower.size()),
                  static_cast<int>(m.row_lower.size()), matrix.starts.data(),
                  matrix.rows.data(), matrix.values.data(), m.lower.data(),
                  m.upper.data(), m.cost.data(), m.row_lower.data(),
                  m.row_upper.data());
  // The caller has scaled the program. Clp's own scaling would change the
  // meaning of the tolerance.
  Clp_scaling(m.clp, 0);
  Clp_setPrimalTolerance(m.clp, kTolerance);
  Clp_setDualTolerance(m.clp, kTolerance);
}

LinearSolver::~LinearSolver() {
  const MutexLock lock(ClpMutex());
  Clp_deleteModel(model_->clp);
}

void LinearSolver::SetColumn(int column, double lower, double upper) {
  model_->lower[static_cast<size_t>(column)] = ClpBound(lower);
  model_->upper[static_cast<size_t>(column)] = ClpBound(upper);
  Clp_chgColumnLower(model_->clp, model_->lower.data());
  Clp_chgColumnUpper(model_->clp, model_->upper.data());
}

void LinearSolver::SetRowUpper(int row, double upper) {
  model_->row_upper[static_cast<size_t>(row)] = ClpBound(upper);
  Clp_chgRowUpper(model_->clp, model_->row_upper.data());
}

absl::StatusOr<double> LinearSolver::Minimise(int column) {
  const MutexLock lock(ClpMutex());
  Model& m = *model_;
  m.cost.assign(m.cost.size(), 0);
  m.cost[static_cast<size_t>(column)] = 1;
  Clp_chgObjCoefficients(m.clp, m.cost.data());
  switch (const int status = m.Solve()) {
    case 0:
      break;
    case 1:
      return absl::NotFoundError("the linear program is infeasible");
    case 2:
      return absl::NotFoundError("the linear program is unbounded");
    default:
      return absl::InternalError(
          fmt::format("Clp stopped with status {}", status));
  }
  const double* values = Clp_primalColumnSolution(m.clp);
  m.values.assign(values, values + m.values.size());
  return m.values[static_cast<size_t>(column)];
}

double LinearSolver::Value(int column) const {
  return model_->values[static_cast<size_t>(column)];
}

double LinearSolver::Price(int row) const {
  return std::fabs(Clp_dualRowSolution(model_->clp)[row]);
}

LinearSolver::Basis LinearSolver::basis() const {
  const unsigned char* all = Clp_statusArray(model_->clp);
  return {all, all + model_->lower.size() + model_->row_lower.size()};
}

void LinearSolver::StartFrom(const Basis& basis, bool dual) {
  Clp_copyinStatus(model_->clp, basis.data());
  model_->dual = dual;
}

}  // namespace sluice::planner
