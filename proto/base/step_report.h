// What a rank reports about one step: one struct for callers of the session,
// the wire (proto/step_report.h converts) and the daemon's policy.
#pragma once

#include <cstdint>

#include "proto/base/units.h"

namespace sluice {

// Sums over all steps that a session reported, from its first on. A report that
// got lost, as no daemon was there to read it, is in the next one's.
struct StepTotals {
  int64_t reports = 0;  // rises by one each: the report's number
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
  double stall_seconds = 0;       // compute, waiting for copies
  double grant_wait_seconds = 0;  // copies, waiting for bandwidth
  Bytes hbm_peak, host_peak;
  int64_t tokens = 0;
  double loss = 0;              // may be NaN
  int64_t plan_mismatches = 0;  // of this step
  // The session's own, whatever its caller writes here. `reports` 0: of a
  // client that sends none, and what it reports is added up by the daemon.
  StepTotals totals;

  bool operator==(const StepReport&) const = default;
};

// `totals` with one more report: the step's figures alone, its totals aside.
StepTotals Plus(StepTotals totals, const StepReport& step);

// What came after `before`. Nothing falls, and no rank makes a sum over many
// reports full by one of them: seconds and counts are at most one step's limits
// (below), reports at most kMostMissed.
StepTotals Since(const StepTotals& before, const StepTotals& after);

// What no step can be. The daemon adds up for as long as it lives.
inline constexpr double kMaxStepSeconds = 366 * 86400.0;
inline constexpr int64_t kMaxStepCount = int64_t{1} << 40;
inline constexpr int64_t kMostMissed = int64_t{1} << 20;
// The largest value of each sum. Sums saturate here; no run reaches it.
inline constexpr int64_t kMaxStepSum = int64_t{1} << 61;

}  // namespace sluice
