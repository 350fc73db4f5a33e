// What is counted of each job, for metrics: at most so many at a time, since
// each is a series, and jobs are called as users like.
//
// A job is kept while it has a session, and kKept longer, so that what it did
// last is still scraped. Where kMost are kept, the one that ended first makes
// room; where all of them live, a new one is counted in `other`.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "daemon/core/histogram.h"
#include "daemon/core/late_copies.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

struct JobStats {
  uint64_t steps = 0;
  uint64_t tokens = 0;
  double stall_seconds = 0;
  double grant_wait_seconds = 0;
  uint64_t plan_mismatches = 0;
  LateDirections late;
  // A step of a million tokens takes hours.
  Histogram step_seconds{
      {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10800}};

  void Add(const JobStats& more);
};

class JobSeries {
 public:
  static constexpr size_t kMost = 256;
  static constexpr absl::Duration kKept = absl::Minutes(5);

  // A session of the job began: its first, or one more.
  void Began(const JobKey& job, absl::Time now);
  // The job's last session ended.
  void Ended(const JobKey& job, absl::Time now);
  // Its own, or those of `other`.
  JobStats& Of(const JobKey& job);

  // As they are at `now`: without those that ended longer ago than kKept.
  JobSeries At(absl::Time now) const;

  struct Series {
    JobStats stats;
    std::optional<absl::Time> ended;
  };
  // Null: it is among `other`.
  const Series* Find(const JobKey& job) const;
  const std::map<JobKey, Series>& jobs() const { return jobs_; }
  const JobStats& other() const { return other_; }

 private:
  void ForgetEnded(absl::Time now);
  // False: all live.
  bool MakeRoom();

  std::map<JobKey, Series> jobs_;
  JobStats other_;
};

}  // namespace sluice::daemon
