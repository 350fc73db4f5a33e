// Tests that transformations of a trace change its peak by a known factor, that
// plans are deterministic, and that golden plans stay as they are.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "planner/memory/plan_memory.h"
#include "planner/trace/read_trace.h"
#include "proto/plan/validate.h"
#include "tests/planner/generator.h"
#include "tests/planner/traces.h"
#include "tests/support/golden.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using ::sluice::testing::IsOk;

using Change = plan::Trace (*)(plan::Trace);

plan::Trace Shifted(plan::Trace trace) {
  for (plan::Buffer& b : trace.buffers) b.lower += 12345, b.upper += 12345;
  trace.end += 12345;
  return trace;
}

plan::Trace Stretched(plan::Trace trace) {
  for (plan::Buffer& b : trace.buffers) b.lower *= 7, b.upper *= 7;
  trace.end *= 7;
  return trace;
}

plan::Trace Reversed(plan::Trace trace) {
  for (plan::Buffer& b : trace.buffers) {
    b = {b.id, trace.end - b.upper, trace.end - b.lower, b.size};
  }
  // Restores the order of requests.
  std::stable_sort(
      trace.buffers.begin(), trace.buffers.end(),
      [](const auto& a, const auto& b) { return a.lower < b.lower; });
  return trace;
}

plan::Trace Doubled(plan::Trace trace) {
  const size_t n = trace.buffers.size();
  for (size_t k = 0; k < n; ++k) {
    plan::Buffer b = trace.buffers[k];
    b.id += static_cast<int64_t>(n);
    b.lower += trace.end;
    b.upper += trace.end;
    trace.buffers.push_back(b);
  }
  trace.end *= 2;
  return trace;
}

// Scales the alignment, too, so that rounding is the same.
constexpr int64_t kScale = 4;
plan::Trace Scaled(plan::Trace trace) {
  for (plan::Buffer& b : trace.buffers) b.size = b.size * kScale;
  trace.alignment = trace.alignment * kScale;
  return trace;
}

struct Case {
  std::string name;
  Change change;
  int64_t factor;  // by which `change` multiplies the peak

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

std::vector<plan::Trace> Inputs() {
  std::vector<plan::Trace> inputs;
  for (NamedTrace& layer : StandardLayers(60, 8)) {
    inputs.push_back(std::move(layer.trace));
  }
  std::mt19937 random(6);
  for (int k = 0; k < 30; ++k) {
    inputs.push_back(
        RandomTrace(random, 5 + static_cast<int>(random() % 20), 40, 30));
  }
  inputs.push_back(AboveMaxLive());
  inputs.push_back(ReadCsv("iopddl_G_1.csv"));
  inputs.push_back(ReadCsv("somas_resnet50.csv"));
  inputs.push_back(
      GenerateIteration(*FindIteration("llama-8b-tp1-cp4-chunks1-mb1"), 2)
          .trace);
  // Reversed() and Doubled() need traces that do not end before their buffers.
  for (plan::Trace& trace : inputs) {
    for (const plan::Buffer& b : trace.buffers) {
      trace.end = std::max(trace.end, b.upper);
    }
  }
  return inputs;
}

class PlanProperties : public ::testing::TestWithParam<Case> {};

TEST_P(PlanProperties, ProvedPeaksChangeByTheFactor) {
  int proved = 0;
  for (const plan::Trace& trace : Inputs()) {
    const auto before = PlanMemory(trace, {.time_limit = kNoClock});
    const plan::Trace changed = GetParam().change(trace);
    const auto after = PlanMemory(changed, {.time_limit = kNoClock});
    ASSERT_THAT(before, IsOk());
    ASSERT_THAT(after, IsOk());
    EXPECT_THAT(plan::ValidatePlacement(changed, *after), IsOk());
    EXPECT_EQ(after->max_live, before->max_live * GetParam().factor);
    // A bound of either trace, scaled by the factor, holds for the other trace.
    EXPECT_LE(after->lower_bound, before->peak * GetParam().factor);
    EXPECT_LE(before->lower_bound * GetParam().factor, after->peak);
    if (!before->optimal() || !after->optimal()) continue;
    ++proved;
    EXPECT_EQ(after->peak, before->peak * GetParam().factor)
        << trace.buffers.size() << " buffers";
  }
  EXPECT_GE(proved, 90);
}

INSTANTIATE_TEST_SUITE_P(Changes, PlanProperties,
                         ::testing::Values(Case{"ShiftedInTime", Shifted, 1},
                                           Case{"StretchedInTime", Stretched,
                                                1},
                                           Case{"ReversedInTime", Reversed, 1},
                                           Case{"TwoCopiesInARow", Doubled, 1},
                                           Case{"ScaledSizes", Scaled, kScale}),
                         [](const auto& info) { return info.param.name; });

TEST(PlanProperties, TheSameTraceHasTheSamePlan) {
  for (const char* name : {"A.1048576.csv", "iopddl_G_1.csv"}) {
    const plan::Trace trace = ReadCsv(name);
    const auto first = PlanMemory(trace, {.time_limit = absl::Seconds(60)});
    const auto second = PlanMemory(trace, {.time_limit = absl::Seconds(60)});
    ASSERT_THAT(first, IsOk());
    ASSERT_THAT(second, IsOk());
    EXPECT_EQ(first->offsets, second->offsets) << name;
    EXPECT_EQ(first->method, second->method);
  }
}

// ---- Golden ----------------------------------------------------------------

std::string Line(const std::string& name, const MemoryPlan& plan) {
  return fmt::format(
      "{}: {} buffers, peak {}, bound {}, max live {}, proved by {}, levels "
      "{}\n",
      name, plan.offsets.size(), plan.peak.count(), plan.lower_bound.count(),
      plan.max_live.count(), plan.proved_by, plan.levels);
}

// Returns a line per plan, and two small plans in full, so that a change of the
// solvers that moves a buffer shows in tests/golden/planner/memory_plans.txt.
std::string GoldenPlans() {
  std::string lines, whole;
  const auto add = [&](const std::string& name, const NamedTrace& named,
                       bool show) {
    const auto plan = PlanMemory(named.trace, {.time_limit = kNoClock});
    EXPECT_THAT(plan, IsOk());
    lines += Line(name, *plan);
    if (show) whole += "\n" + name + "\n" + PlanCsv(named, plan->offsets);
  };
  IterationSpec layer = *FindIteration("llama-8b-tp1-cp4-chunks1-mb1");
  add("llama layer forward", GenerateLayer(layer, LayerPass::kForward, 1),
      true);
  add("llama layer backward", GenerateLayer(layer, LayerPass::kBackward, 1),
      true);
  for (const char* name :
       {"gpt-7b-tp4-cp2-chunks1-mb2-swapped", "gpt-65b-tp8-cp1-chunks1-mb1",
        "llama-8b-tp1-cp1-chunks8-mb1-swapped"}) {
    add(name, GenerateIteration(*FindIteration(name), 1), false);
  }
  for (const char* name :
       {"K.1048576.csv", "iopddl_G_1.csv", "somas_resnet50.csv"}) {
    add(name, {.trace = ReadCsv(name)}, false);
  }
  return lines + whole;
}

TEST(GoldenPlans, AreThoseThatWereReviewed) {
  testing::ExpectGolden(GoldenPlans(), "tests/golden/planner/memory_plans.txt");
}

}  // namespace
}  // namespace sluice::planner
