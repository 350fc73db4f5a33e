// Counters and histograms of the daemon's life, for metrics.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/core/named_counts.h"
#include "daemon/core/types.h"
#include "daemon/core/waiting.h"

namespace sluice::daemon {

// Cumulative buckets as Prometheus wants them: counts[i] observations were
// <= bounds[i]; one more for the rest.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

  void Observe(double value) {
    size_t i = 0;
    while (i < bounds_.size() && value > bounds_[i]) ++i;
    ++counts_[i];
    sum_ += value;
    ++count_;
  }

  // Of the same bounds.
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

// What refused a lease. Values of each of these in the order of their names:
// so do metrics list them.
enum class RefusedBy { kBudget, kDevice, kDrain, kExtents, kPool, kQueue };
template <>
struct EnumNames<RefusedBy> {
  static constexpr std::string_view kNames[] = {"budget",  "device", "drain",
                                                "extents", "pool",   "queue"};
};

// Why a rank's session ended otherwise than by itself.
enum class Death { kEvicted, kProtocol, kSignal, kStatus, kUnknown };
template <>
struct EnumNames<Death> {
  static constexpr std::string_view kNames[] = {"evicted", "protocol", "signal",
                                                "status", "unknown"};
};

// What became of a question to the planner.
enum class PlanOutcome { kCached, kFailed, kInfeasible, kSolved };
template <>
struct EnumNames<PlanOutcome> {
  static constexpr std::string_view kNames[] = {"cached", "failed",
                                                "infeasible", "solved"};
};

// New plans for running jobs, and what became of them at their ranks.
enum class ChangeOutcome { kRefused, kSent, kTaken };
template <>
struct EnumNames<ChangeOutcome> {
  static constexpr std::string_view kNames[] = {"refused", "sent", "taken"};
};

// A unit (proto/plan/units.h) of a plan: known before, or planned for it.
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

struct GpuStats {
  Bytes h2d, d2h;
};

// A job's sums outlive its ranks only until its last rank has gone.
struct JobStats {
  uint64_t steps = 0;
  uint64_t tokens = 0;
  double stall_seconds = 0;
  double grant_wait_seconds = 0;
  uint64_t plan_mismatches = 0;
  // A step of a million tokens takes hours.
  Histogram step_seconds{
      {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10800}};
};

struct Stats {
  uint64_t sessions_opened = 0;
  uint64_t sessions_refused = 0;
  uint64_t leases_granted = 0;
  CountsBy<RefusedBy> leases_refused;
  CountsBy<WaitEnd> waits;     // of leases, that ended
  uint64_t waits_refused = 0;  // too many waited
  ExtentCounts extents;
  CountsBy<Death> client_deaths;
  CountsBy<PlanOutcome> plans;
  CountsBy<ChangeOutcome> plan_changes;
  CountsBy<UnitOutcome> plan_units;
  std::vector<GpuStats> gpus;
  std::map<JobKey, JobStats> jobs;
  Histogram lease_seconds{
      {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}};
  Histogram plan_seconds{{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};
  Histogram grant_wait_seconds{
      {0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};
};

}  // namespace sluice::daemon
