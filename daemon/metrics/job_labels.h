// The labels of jobs' series.
//
// Jobs with the same name and user form one series, even in different cgroups.
// The jobs beyond the limit (daemon/core/stats.h) share one series, under
// a name that no user can choose.
//
// Thread safety: pure.
#pragma once

#include <compare>
#include <string>

#include "daemon/core/stats.h"
#include "daemon/metrics/families.h"

namespace sluice::daemon {

struct JobLabel {
  std::string name, uid;
  auto operator<=>(const JobLabel&) const = default;
};

inline JobLabel LabelOf(const Stats& stats, const JobKey& job) {
  if (stats.jobs.Find(job) == nullptr) return {"other", "other"};
  return {job.name, std::to_string(job.principal.uid)};
}

inline Labels LabelsOf(const JobLabel& job) {
  return {{"sluice_job", job.name}, {"uid", job.uid}};
}

}  // namespace sluice::daemon
