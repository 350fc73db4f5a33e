// What a rank tells about one step: the same to whoever calls the session,
// over the wire (proto/step_report.h converts) and in the daemon's policy.
#pragma once

#include <cstdint>

#include "proto/base/units.h"

namespace sluice {

struct StepReport {
  int64_t step = 0;
  double seconds = 0;
  Bytes h2d, d2h;
  double stall_seconds = 0;       // compute, waiting for copies
  double grant_wait_seconds = 0;  // copies, waiting for bandwidth
  Bytes hbm_peak, host_peak;
  int64_t tokens = 0;
  double loss = 0;              // may be NaN
  int64_t plan_mismatches = 0;  // of this step; the daemon adds up

  bool operator==(const StepReport&) const = default;
};

}  // namespace sluice
