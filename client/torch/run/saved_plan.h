// A plan and the recording it answers: what a resumed run replays.
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

  // The rank's own part; null: there is none.
  const plan::RankPlan* own() const;
};

// Its transient buffers as a report shows them.
struct PlanSummary {
  Bytes peak, lower_bound;
  std::string proved_by;
  int64_t mismatches = 0;
};
PlanSummary Summarize(const SavedPlan& saved, int64_t mismatches);

}  // namespace sluice::runtime
