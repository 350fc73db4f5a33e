#include "planner/swap/lp.h"

#include <gtest/gtest.h>

namespace sluice::planner {
namespace {

TEST(Lp, FindsTheOptimumBeforeAndAfterChanges) {
  // Minimises -x - 2y with x + y <= 4 and x between 1 and 3.
  LinearProgram program;
  const int x = program.AddColumn({.lower = 1, .upper = 3});
  const int y = program.AddColumn({});
  const int cost = program.AddColumn({.lower = -100});
  const int sum = program.AddRow({.upper = 4, .terms = {{x, 1}, {y, 1}}});
  program.AddRow({.lower = 0, .terms = {{cost, 1}, {x, 1}, {y, 2}}});
  LinearSolver solver(program);
  ASSERT_TRUE(solver.Minimise(cost).ok());
  EXPECT_NEAR(solver.Value(x), 1, 1e-9);
  EXPECT_NEAR(solver.Value(y), 3, 1e-9);
  solver.SetRowUpper(sum, 5);
  EXPECT_NEAR(*solver.Minimise(cost), -9, 1e-9);
  solver.SetColumn(x, 2, 2);
  EXPECT_NEAR(*solver.Minimise(cost), -8, 1e-9);
  EXPECT_NEAR(*solver.Minimise(y), 0, 1e-9);
}

TEST(Lp, ARowThatLimitsTheOptimumHasAPrice) {
  // Minimises -x - 2y with x + y <= 4 and y <= 100.
  LinearProgram program;
  const int x = program.AddColumn({});
  const int y = program.AddColumn({});
  const int cost = program.AddColumn({.lower = -100});
  const int sum = program.AddRow({.upper = 4, .terms = {{x, 1}, {y, 1}}});
  const int roomy = program.AddRow({.upper = 100, .terms = {{y, 1}}});
  program.AddRow({.lower = 0, .terms = {{cost, 1}, {x, 1}, {y, 2}}});
  LinearSolver solver(program);
  ASSERT_TRUE(solver.Minimise(cost).ok());
  EXPECT_NEAR(solver.Price(sum), 2, 1e-9);
  EXPECT_EQ(solver.Price(roomy), 0);
  LinearSolver again(program);
  again.SetRowUpper(sum, 5);
  again.StartFrom(solver.basis(), /*dual=*/true);
  EXPECT_NEAR(*again.Minimise(cost), -10, 1e-9);
}

TEST(Lp, ReportsAMissingOptimumAndSolvesAgainAfterwards) {
  LinearProgram program;
  const int x = program.AddColumn({.upper = 1});
  program.AddRow({.lower = 2, .terms = {{x, 1}}});
  LinearSolver solver(program);
  EXPECT_EQ(solver.Minimise(x).status().code(), absl::StatusCode::kNotFound);
  solver.SetColumn(x, 0, 3);
  EXPECT_NEAR(*solver.Minimise(x), 2, 1e-9);
  LinearProgram unbounded;
  const int free = unbounded.AddColumn({.lower = -kUnbounded});
  EXPECT_EQ(LinearSolver(unbounded).Minimise(free).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice::planner
