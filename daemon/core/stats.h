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

#include "daemon/core/types.h"

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
  std::map<std::string, uint64_t> leases_refused = {
      {"budget", 0}, {"device", 0}, {"pool", 0}};
  uint64_t extents_made = 0;
  uint64_t extents_destroyed = 0;
  uint64_t extents_reused = 0;
  // By how the process ended; all present from the start.
  std::map<std::string, uint64_t> client_deaths = {{"signal", 0},
                                                   {"status", 0},
                                                   {"unknown", 0},
                                                   {"evicted", 0},
                                                   {"protocol", 0}};
  std::map<std::string, uint64_t> plans = {
      {"solved", 0}, {"cached", 0}, {"infeasible", 0}, {"failed", 0}};
  // New plans for running jobs, and what became of them at their ranks.
  std::map<std::string, uint64_t> plan_changes = {
      {"sent", 0}, {"taken", 0}, {"refused", 0}};
  // Units (proto/plan/units.h) of those plans: planned now, or known before.
  std::map<std::string, uint64_t> plan_units = {{"solved", 0}, {"known", 0}};
  std::vector<GpuStats> gpus;
  std::map<std::pair<Principal, std::string>, JobStats> jobs;
  Histogram lease_seconds{
      {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}};
  Histogram plan_seconds{{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};
  Histogram grant_wait_seconds{
      {0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}};
};

}  // namespace sluice::daemon
