// By which labels series of jobs are told.
//
// Jobs of one name and user, whatever their cgroup, are one series; those that
// are too many (daemon/core/job_series.h) are one together, which no user can
// be called like.
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
