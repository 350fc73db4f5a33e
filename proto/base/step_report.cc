#include "proto/base/step_report.h"

#include <algorithm>

namespace sluice {
namespace {

int64_t Sum(int64_t a, int64_t b) { return std::min(a + b, kMaxStepSum); }
Bytes Sum(Bytes a, Bytes b) { return Bytes(Sum(a.count(), b.count())); }

template <typename T>
T Rise(T before, T after, T most) {
  return std::clamp(after - before, T{}, most);
}

}  // namespace

StepTotals Plus(StepTotals totals, const StepReport& step) {
  totals.reports = Sum(totals.reports, 1);
  totals.h2d = Sum(totals.h2d, step.h2d);
  totals.d2h = Sum(totals.d2h, step.d2h);
  totals.stall_seconds += step.stall_seconds;
  totals.grant_wait_seconds += step.grant_wait_seconds;
  totals.tokens = Sum(totals.tokens, step.tokens);
  totals.plan_mismatches = Sum(totals.plan_mismatches, step.plan_mismatches);
  return totals;
}

StepTotals Since(const StepTotals& before, const StepTotals& after) {
  const Bytes most(kMaxStepSum);
  return {.reports = Rise(before.reports, after.reports, kMostMissed),
          .h2d = Rise(before.h2d, after.h2d, most),
          .d2h = Rise(before.d2h, after.d2h, most),
          .stall_seconds =
              Rise(before.stall_seconds, after.stall_seconds, kMaxStepSeconds),
          .grant_wait_seconds = Rise(before.grant_wait_seconds,
                                     after.grant_wait_seconds, kMaxStepSeconds),
          .tokens = Rise(before.tokens, after.tokens, kMaxStepCount),
          .plan_mismatches = Rise(before.plan_mismatches, after.plan_mismatches,
                                  kMaxStepCount)};
}

}  // namespace sluice
