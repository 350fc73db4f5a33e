// A rank's report about one step, for the session's callers, the wire
// (ToWire and FromWire of proto/wire.h) and the daemon's policy.
#pragma once

#include <cstdint>

#include "proto/base/units.h"

namespace sluice {

// Sums over all steps that a session has reported. If the daemon misses a
// report, the sums of the next report include its figures.
struct StepTotals {
  int64_t reports = 0;  // including the report with these sums
  Bytes h2d, d2h;
  double stall_seconds = 0, grant_wait_seconds = 0;
  int64_t tokens = 0;
  int64_t plan_mismatches = 0;

  bool operator==(const StepTotals&) const = default;
};

struct StepReport {
  int64_t step = 0;
  double seconds = 0;
  Bytes h2d, d2h;
  double stall_seconds = 0;       // time that compute waited for copies
  double grant_wait_seconds = 0;  // time that copies waited for bandwidth
  Bytes hbm_peak, host_peak;
  int64_t tokens = 0;
  double loss = 0;              // may be NaN
  int64_t plan_mismatches = 0;  // allocations that differ from the plan
  // Set by the session, which ignores the caller's values. `reports` is 0 if
  // the client sends no totals; the daemon then adds up the reports itself.
  StepTotals totals;

  bool operator==(const StepReport&) const = default;
};

// Returns `totals` plus the figures of one more step; ignores `step.totals`.
StepTotals Plus(StepTotals totals, const StepReport& step);

// Returns `after` - `before`, with 0 for negative differences. Seconds, tokens
// and mismatches are at most the limits of one step (below) and reports at most
// kMostMissed, so that one report cannot saturate a sum over many.
StepTotals Since(const StepTotals& before, const StepTotals& after);

// Limits of one step's figures.
inline constexpr double kMaxStepSeconds = 366 * 86400.0;
inline constexpr int64_t kMaxStepCount = int64_t{1} << 40;
inline constexpr int64_t kMostMissed = int64_t{1} << 20;
// Sums saturate at this value. No real run reaches it.
inline constexpr int64_t kMaxStepSum = int64_t{1} << 61;

}  // namespace sluice
