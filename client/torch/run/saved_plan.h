// A plan and the recording that it answers; a resumed run replays it.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

struct SavedPlan {
  plan::RankProfile profile;
  plan::NodePlan plan;

  // Returns the rank's own part; null if there is none.
  const plan::RankPlan* own() const;
};

// The transient buffers of a plan, for the report.
struct PlanSummary {
  Bytes peak, lower_bound;
  std::string proved_by;
  int64_t mismatches = 0;
};
PlanSummary Summarize(const SavedPlan& saved, int64_t mismatches);

}  // namespace sluice::runtime
