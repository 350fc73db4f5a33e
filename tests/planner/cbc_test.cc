#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <random>
#include <string>

#include "planner/memory/greedy.h"
#include "planner/memory/mip_process.h"
#include "planner/memory/problem.h"
#include "planner/planner.h"
#include "proto/plan/validate.h"
#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

const MemoryOptions kOnlyCbc = {.time_limit = absl::Seconds(20),
                                .use_search = false};
const MemoryOptions kOnlySearch = {.time_limit = kNoClock, .use_cbc = false};

// Returns the worst placement, which stacks everything.
Offsets Stacked(const Problem& problem) {
  Offsets offsets;
  int64_t top = 0;
  for (const Item& item : problem.items) {
    offsets.push_back(top);
    top += item.size;
  }
  return offsets;
}

TEST(Cbc, FindsAndProvesTheOptimumFromTheWorstStart) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    const plan::Trace trace =
        RandomTrace(random, 6 + static_cast<int>(random() % 5), 12, 9);
    const Problem problem = Normalise(trace);
    const Offsets start = Stacked(problem);
    const MipResult result =
        SolveDsaMip(problem, start, problem.max_live, absl::Seconds(20));
    const auto expected = PlanMemory(trace, kOnlySearch);
    ASSERT_TRUE(expected.ok());
    ASSERT_TRUE(expected->optimal());
    const int64_t optimum = expected->peak.count() / problem.unit;
    EXPECT_EQ(result.bound, optimum) << "round " << round;
    const Offsets& found = result.offsets ? *result.offsets : start;
    EXPECT_EQ(PeakOf(problem, found), optimum) << "round " << round;
  }
}

// Sizes of up to 2^40 have no common divisor. CBC gets scaled sizes, but
// offsets stay exact and the bound stays valid.
TEST(Cbc, LargeOddSizesStayExact) {
  std::mt19937 random(6);
  for (int round = 0; round < 6; ++round) {
    plan::Trace trace = RandomTrace(random, 9, 12, 9);
    trace.alignment = Bytes(1);
    for (plan::Buffer& b : trace.buffers) {
      b.size = b.size * (int64_t{1} << 31) + Bytes(b.id * 2 + 1);
    }
    const Problem problem = Normalise(trace);
    ASSERT_GT(problem.max_live, int64_t{1} << 36);
    const Offsets start = Stacked(problem);
    const MipResult result =
        SolveDsaMip(problem, start, problem.max_live, absl::Seconds(20));
    const auto by_search = PlanMemory(trace, kOnlySearch);
    ASSERT_TRUE(by_search.ok() && by_search->optimal());
    EXPECT_LE(result.bound * problem.unit, by_search->peak.count());
    ASSERT_TRUE(result.offsets.has_value());
    const plan::Placement placement =
        ToPlacement(problem, *result.offsets, trace);
    EXPECT_TRUE(plan::ValidatePlacement(trace, placement).ok());
    EXPECT_LE(placement.peak.count(),
              static_cast<double>(by_search->peak.count()) * (1 + 1e-4));
  }
}

TEST(Cbc, ProvesAnOptimumAboveMaxLive) {
  const plan::Trace trace = AboveMaxLive();
  const auto placement = PlanMemory(trace, kOnlyCbc);
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->peak, Bytes(18 * 64));
  EXPECT_EQ(placement->proved_by, "cbc");
}

// Compares CBC with the search where greedy leaves a gap. CBC may reach its
// time limit, but its answer must still be true.
TEST(Cbc, NeverContradictsTheSearch) {
  std::mt19937 random(7);
  int gaps = 0;
  for (int round = 0; round < 2000 && gaps < 6; ++round) {
    const plan::Trace trace =
        RandomTrace(random, 12 + static_cast<int>(random() % 8), 16, 40);
    const Problem problem = Normalise(trace);
    if (GreedyRace(problem, std::numeric_limits<int64_t>::max(),
                   problem.max_live, [] { return false; })
            .peak == problem.max_live) {
      continue;
    }
    ++gaps;
    MemoryOptions only_cbc = kOnlyCbc;
    only_cbc.time_limit = absl::Seconds(3);
    const auto by_cbc = PlanMemory(trace, only_cbc);
    const auto by_search = PlanMemory(trace, kOnlySearch);
    ASSERT_TRUE(by_cbc.ok() && by_search.ok());
    ASSERT_TRUE(by_search->optimal());
    EXPECT_LE(by_cbc->lower_bound, by_search->peak);
    EXPECT_GE(by_cbc->peak, by_search->peak);
  }
  EXPECT_EQ(gaps, 6);
}

TEST(Cbc, PrintsNothing) {
  std::mt19937 random(8);
  const plan::Trace trace = RandomTrace(random, 14, 16, 30);
  const Problem problem = Normalise(trace);
  ::testing::internal::CaptureStdout();
  SolveDsaMip(problem, Stacked(problem), problem.max_live, absl::Seconds(5));
  fflush(nullptr);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace sluice::planner
