#include "client/torch/run/saved_plan.h"

#include <algorithm>

#include "proto/plan/validate.h"

namespace sluice::runtime {

const plan::RankPlan* SavedPlan::own() const {
  return plan::PartOf(plan, profile);
}

PlanSummary Summarize(const SavedPlan& saved, int64_t mismatches) {
  PlanSummary summary;
  const plan::RankPlan* own = saved.own();
  if (own == nullptr) return summary;
  summary.peak = own->transient_peak;
  bool all = true;
  for (const plan::SegmentPlan& segment : own->segments) {
    summary.lower_bound =
        std::max(summary.lower_bound, segment.placement.lower_bound);
    all = all && segment.placement.optimal();
    if (summary.proved_by.empty()) {
      summary.proved_by = segment.placement.proved_by;
    }
  }
  if (!all || summary.peak != summary.lower_bound) summary.proved_by = "none";
  summary.mismatches = mismatches;
  return summary;
}

}  // namespace sluice::runtime
