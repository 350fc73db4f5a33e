// Counters and histograms since the daemon started, for metrics.
// Thread safety: one thread (core.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/named_counts.h"
#include "daemon/core/node/types.h"
#include "daemon/core/waiting.h"
#include "proto/base/find.h"

namespace sluice::daemon {

// Why a lease was refused. In this enum and the following ones, the values are
// in alphabetical order, as metrics list them.
enum class RefusedBy { kBudget, kDevice, kDrain, kExtents, kPool, kQueue };
template <>
struct EnumNames<RefusedBy> {
  static constexpr std::string_view kNames[] = {"budget",  "device", "drain",
                                                "extents", "pool",   "queue"};
};

// Why a rank's session ended, unless the rank ended it.
enum class Death { kEvicted, kProtocol, kSignal, kStatus, kUnknown };
template <>
struct EnumNames<Death> {
  static constexpr std::string_view kNames[] = {"evicted", "protocol", "signal",
                                                "status", "unknown"};
};

// The outcome of a question to the planner.
enum class PlanOutcome { kCached, kFailed, kInfeasible, kSolved };
template <>
struct EnumNames<PlanOutcome> {
  static constexpr std::string_view kNames[] = {"cached", "failed",
                                                "infeasible", "solved"};
};

// What became of a new plan for a running job: it was sent to the ranks, and
// then taken or refused by them.
enum class ChangeOutcome { kRefused, kSent, kTaken };
template <>
struct EnumNames<ChangeOutcome> {
  static constexpr std::string_view kNames[] = {"refused", "sent", "taken"};
};

// Whether a unit (proto/plan/units.h) of a plan was in the cache or was solved.
enum class UnitOutcome { kKnown, kSolved };
template <>
struct EnumNames<UnitOutcome> {
  static constexpr std::string_view kNames[] = {"known", "solved"};
};

struct ExtentCounts {
  uint64_t made = 0;
  uint64_t destroyed = 0;
  uint64_t reused = 0;
};

// counts[i] observations were in (bounds[i - 1], bounds[i]]; the last count has
// no upper bound. daemon/metrics adds counts up, as Prometheus expects.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

  void Observe(double value) {
    ++counts_[std::ranges::lower_bound(bounds_, value) - bounds_.begin()];
    sum_ += value;
    ++count_;
  }

  // REQUIRES: `other` has the same bounds.
  void Merge(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    sum_ += other.sum_;
    count_ += other.count_;
  }

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }
  uint64_t count() const { return count_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
  uint64_t count_ = 0;
};

struct JobStats {
  uint64_t steps = 0;
  uint64_t tokens = 0;
  double stall_seconds = 0;
  double grant_wait_seconds = 0;
  uint64_t plan_mismatches = 0;
  LateDirections late;
  // The bounds reach hours: a step of a million tokens takes that long.
  Histogram step_seconds{
      {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10800}};

  void Add(const JobStats& more);
};

// Counters of each job. Limited, because users choose the names of jobs freely.
// A job is kept while it has a session, and for kKept longer, so that its last
// values are still scraped. If kMost are kept, a new job replaces the one that
// ended first, or is counted in `other` if all of these have sessions.
class JobSeries {
 public:
  static constexpr size_t kMost = 256;
  static constexpr absl::Duration kKept = absl::Minutes(5);

  void Began(const JobKey& job, absl::Time now);
  // Call when the job's last session has ended.
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

  std::map<JobKey, Series> jobs_;
  JobStats other_;
};

struct GpuStats {
  Bytes h2d, d2h;
  LateDirections late;
};

struct Stats {
  uint64_t sessions_opened = 0;
  uint64_t sessions_refused = 0;
  uint64_t leases_granted = 0;
  CountsBy<RefusedBy> leases_refused;
  CountsBy<WaitEnd> waits;        // ended waits of leases
  uint64_t waits_refused = 0;     // too many leases waited
  uint64_t profiles_refused = 0;  // too large to be saved
  ExtentCounts extents;
  CountsBy<Death> client_deaths;
  CountsBy<PlanOutcome> plans;
  CountsBy<ChangeOutcome> plan_changes;
  CountsBy<UnitOutcome> plan_units;
  std::vector<GpuStats> gpus;
  JobSeries jobs;
  Histogram lease_seconds{
      {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}};
  Histogram map_seconds = lease_seconds;
  Histogram plan_seconds{{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};
  Histogram grant_wait_seconds{
      {0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};

  // Visits all metrics: visit(name, help, counter or histogram), and
  // visit(name, help, counters, label) where there is one counter per value.
  void Each(auto visit) const {
    visit("sluice_sessions_opened_total", "Connections accepted.",
          sessions_opened);
    visit("sluice_sessions_refused_total",
          "Connections ended because of a limit or a missing Hello.",
          sessions_refused);
    visit("sluice_client_deaths_total",
          "Rank sessions that did not end by themselves.", client_deaths,
          "reason");
    visit("sluice_leases_granted_total", "Leases granted.", leases_granted);
    visit("sluice_leases_refused_total", "Leases refused.", leases_refused,
          "reason");
    visit("sluice_lease_waits_total", "Waits of leases that ended.", waits,
          "result");
    visit("sluice_extents_made_total", "Extents made by the device.",
          extents.made);
    visit("sluice_extents_reused_total",
          "Idle extents given to their principal again.", extents.reused);
    visit("sluice_extents_destroyed_total",
          "Idle extents destroyed to make room for another size or "
          "principal, with time, or with their principal's last process.",
          extents.destroyed);
    visit("sluice_plans_total", "Plans by result.", plans, "result");
    visit("sluice_plan_changes_total", "New plans for running jobs, by result.",
          plan_changes, "result");
    visit("sluice_plan_units_total",
          "Units (repeated pieces of work) whose memory a plan needed, solved "
          "for it or known before.",
          plan_units, "result");
    visit("sluice_lease_seconds",
          "Time from a lease's request until its extents exist.",
          lease_seconds);
    visit("sluice_plan_seconds",
          "Time from the last profile until the worker's plan is checked.",
          plan_seconds);
    visit("sluice_map_seconds",
          "How long ranks took to map a lease, as they report it.",
          map_seconds);
    visit("sluice_grant_wait_seconds",
          "Time a step's copies waited for bandwidth grants.",
          grant_wait_seconds);
  }
};

}  // namespace sluice::daemon
