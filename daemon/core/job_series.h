// Counters of each job, for metrics. The number of jobs is limited, because
// users choose the names of jobs freely. A job is kept while it has a session,
// and for kKept longer, so that its last values are still scraped. If kMost are
// kept, a new job replaces the one that ended first; if all of them still have
// sessions, it is counted in `other`.
// Thread safety: one thread (core.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "daemon/core/histogram.h"
#include "daemon/core/node/types.h"
#include "proto/base/find.h"

namespace sluice::daemon {

struct JobStats {
  uint64_t steps = 0;
  uint64_t tokens = 0;
  double stall_seconds = 0;
  double grant_wait_seconds = 0;
  uint64_t plan_mismatches = 0;
  LateDirections late;
  // Up to hours: a step of a million tokens takes that long.
  Histogram step_seconds{
      {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10800}};

  void Add(const JobStats& more);
};

class JobSeries {
 public:
  static constexpr size_t kMost = 256;
  static constexpr absl::Duration kKept = absl::Minutes(5);

  // Called when a session of the job begins, the first or a further one.
  void Began(const JobKey& job, absl::Time now);
  // Called when the job's last session has ended.
  void Ended(const JobKey& job, absl::Time now);
  // Returns the job's own counters, or `other` if it has none.
  JobStats& Of(const JobKey& job);

  // Returns a copy without the jobs that ended more than kKept before `now`.
  JobSeries At(absl::Time now) const;

  struct Series {
    JobStats stats;
    std::optional<absl::Time> ended;
  };
  // Returns null if the job is counted in `other`.
  const Series* Find(const JobKey& job) const { return FindOrNull(jobs_, job); }
  const std::map<JobKey, Series>& jobs() const { return jobs_; }
  const JobStats& other() const { return other_; }

 private:
  void ForgetEnded(absl::Time now);
  // Drops the job that ended first. Returns false if none has ended.
  bool MakeRoom();

  std::map<JobKey, Series> jobs_;
  JobStats other_;
};

}  // namespace sluice::daemon
