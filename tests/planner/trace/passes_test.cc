// Tests the detection of repeated passes, and two-level plans that use them.
#include "planner/memory/passes.h"

#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "planner/memory/plan_memory.h"
#include "proto/plan/validate.h"
#include "tests/planner/generator.h"
#include "tests/planner/traces.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using ::sluice::testing::IsOk;

absl::StatusOr<plan::Placement> Flat(const plan::Trace& trace) {
  auto plan = PlanMemory(trace, {.use_cbc = false});
  if (!plan.ok()) return plan.status();
  return static_cast<plan::Placement>(*std::move(plan));
}

// Returns the buffers that live only within the pass, relative to its start.
std::multiset<std::tuple<int64_t, int64_t, int64_t>> Inside(
    const plan::Trace& trace, const Pass& pass) {
  std::multiset<std::tuple<int64_t, int64_t, int64_t>> inside;
  for (const plan::Buffer& b : trace.buffers) {
    if (b.lower < pass.lower || b.upper > pass.upper) continue;
    inside.emplace(b.lower - pass.lower, b.upper - pass.lower, b.size.count());
  }
  return inside;
}

plan::Trace Repeated(const plan::Trace& unit, int times) {
  plan::Trace all;
  all.alignment = unit.alignment;
  for (int t = 0; t < times; ++t) {
    for (plan::Buffer b : unit.buffers) {
      b.id = static_cast<int64_t>(all.buffers.size());
      b.lower += t * unit.end;
      b.upper += t * unit.end;
      all.buffers.push_back(b);
    }
  }
  all.end = times * unit.end;
  return all;
}

TEST(DetectPasses, FindsTheRepetitionsOfARecordedUnit) {
  std::mt19937 random(3);
  plan::Trace unit = LayerTrace(random, 3, 0.5);
  ++unit.end;  // its last frees come before the next malloc
  const plan::Trace all = Repeated(unit, 7);
  const std::vector<Pass> passes = DetectPasses(all);
  ASSERT_GE(passes.size(), 6);
  for (const Pass& pass : passes) {
    // The last pass ends with its last free.
    EXPECT_LE(pass.upper - pass.lower, unit.end);
    EXPECT_EQ(Inside(all, pass), Inside(all, passes[0]));
  }
  EXPECT_GE(Inside(all, passes[0]).size(), unit.buffers.size() - 2);
}

TEST(DetectPasses, PassesAreDisjointAndAscending) {
  for (const char* name :
       {"gpt-65b-tp8-cp1-chunks1-mb1", "llama-8b-tp4-cp1-chunks1-mb4-swapped",
        "gpt-7b-tp1-cp1-chunks4-mb1-swapped"}) {
    const NamedTrace named = GenerateIteration(*FindIteration(name), 1);
    const std::vector<Pass> passes = DetectPasses(named.trace);
    EXPECT_GE(passes.size(), 4) << name;
    for (size_t k = 0; k < passes.size(); ++k) {
      EXPECT_LT(passes[k].lower, passes[k].upper);
      if (k > 0) {
        EXPECT_GE(passes[k].lower, passes[k - 1].upper);
      }
    }
  }
}

TEST(DetectPasses, AnIterationsLayersAreFoundWithoutMarks) {
  const NamedTrace named =
      GenerateIteration(*FindIteration("gpt-65b-tp8-cp1-chunks1-mb1"), 1);
  const std::vector<Pass> passes = DetectPasses(named.trace);
  // There are 80 layers. Runs of passes may begin within a layer, so up to two
  // layers per direction may be missed.
  EXPECT_GE(passes.size(), 2 * (80 - 2));
}

TEST(DetectPasses, EndsWithoutPassesOnceItMustStop) {
  const NamedTrace named = GenerateIteration(StandardIterations()[0], 1);
  EXPECT_TRUE(DetectPasses(named.trace, [] { return true; }).empty());
}

TEST(DetectPasses, RandomRequestsDoNotRepeat) {
  std::mt19937 random(4);
  EXPECT_TRUE(DetectPasses(RandomTrace(random, 300, 100000, 5000)).empty());
  EXPECT_TRUE(DetectPasses({}).empty());
}

TEST(PlanByPasses, IsAValidPlanOfTheWholeTraceAndNeverBelowTheFlatBound) {
  for (const char* name :
       {"gpt-7b-tp4-cp2-chunks1-mb2-swapped", "llama-8b-tp1-cp4-chunks1-mb1",
        "gpt-7b-tp1-cp1-chunks1-mb2"}) {
    const NamedTrace named = GenerateIteration(*FindIteration(name), 1);
    const std::vector<Pass> passes = DetectPasses(named.trace);
    const auto plan = PlanByPasses(named.trace, passes, Flat);
    ASSERT_THAT(plan, IsOk());
    ASSERT_TRUE(plan->has_value()) << name;
    EXPECT_THAT(plan::ValidatePlacement(named.trace, **plan), IsOk());
    EXPECT_EQ((*plan)->proved_by, "none");
    const auto flat = PlanMemory(named.trace, {.use_cbc = false});
    ASSERT_THAT(flat, IsOk());
    EXPECT_GE((*plan)->peak, flat->lower_bound);
    // Two levels may cost at most 5 % more than a flat plan.
    EXPECT_LE((*plan)->peak, flat->peak + Bytes(flat->peak.count() / 20))
        << name;
  }
}

TEST(PlanByPasses, EachDistinctPassIsPlannedOnce) {
  const NamedTrace named =
      GenerateIteration(*FindIteration("gpt-65b-tp8-cp1-chunks1-mb1"), 1);
  int calls = 0;
  const auto plan = PlanByPasses(named.trace, DetectPasses(named.trace),
                                 [&](const plan::Trace& trace) {
                                   ++calls;
                                   return Flat(trace);
                                 });
  ASSERT_THAT(plan, IsOk());
  // Passes have few distinct forms: forward, backward, and the ends of runs.
  // Level 2 is planned once.
  EXPECT_LE(calls, 12);
}

TEST(PlanByPasses, BothLevelsKeepTheTracesAlignment) {
  std::mt19937 random(6);
  plan::Trace unit = LayerTrace(random, 3, 0.5);
  ++unit.end;
  unit.alignment = Bytes(1 << 20);
  plan::Trace all = Repeated(unit, 7);
  const std::vector<Pass> passes = DetectPasses(all);
  for (const int64_t id : {-1, -2}) {  // in no pass
    all.buffers.push_back({id, 0, all.end, Bytes(100)});
  }
  const auto plan = PlanByPasses(all, passes, Flat);
  ASSERT_THAT(plan, IsOk());
  ASSERT_TRUE(plan->has_value());
  EXPECT_THAT(plan::ValidatePlacement(all, **plan), IsOk());
}

TEST(PlanByPasses, WithoutPassesThereIsNoPlan) {
  std::mt19937 random(5);
  const auto plan = PlanByPasses(RandomTrace(random, 20, 50, 9), {}, Flat);
  ASSERT_THAT(plan, IsOk());
  EXPECT_FALSE(plan->has_value());
}

}  // namespace
}  // namespace sluice::planner
