#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "daemon/metrics/job_labels.h"
#include "daemon/metrics/metric_parts.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

struct JobSums {
  bool lives = false;  // false: ended, so only its counters are shown
  std::map<uint64_t, Bytes> gpu_bytes, outside;  // by GPU
  Bytes host_bytes, hbm_peak;
  double ranks = 0, step = 0, loss = NAN, tokens_per_second = 0;
  double alpha = NAN;  // of the rank that swaps least
  JobStats stats;
};

// Returns the smallest alpha of the plan's ranks; NaN if the job has no plan,
// or one that does not fit.
double LeastAlpha(const Snapshot& from, PlanId id) {
  double least = NAN;
  for (const PlanSnapshot& kept : from.plans) {
    if (kept.plan->id != id || !kept.plan->infeasible.empty()) continue;
    for (const plan::RankPlan& rank : kept.plan->ranks) {
      least = std::fmin(least, rank.alpha);
    }
  }
  return least;
}

std::map<JobLabel, JobSums> SumJobs(const Snapshot& from) {
  std::map<JobLabel, JobSums> jobs;
  for (const JobSnapshot& job : from.jobs) {
    JobSums& sums = jobs[LabelOf(*from.stats, {job.principal, job.name})];
    sums.lives = true;
    sums.alpha = std::fmin(sums.alpha, LeastAlpha(from, job.plan));
    for (const RankSnapshot& rank : job.ranks) {
      if (!rank.closed) ++sums.ranks;
      sums.gpu_bytes[rank.gpu.value()] += rank.gpu_bytes;
      if (rank.outside) sums.outside[rank.gpu.value()] += *rank.outside;
      sums.host_bytes += rank.host_bytes;
      sums.hbm_peak = std::max(sums.hbm_peak, rank.hbm_peak);
      if (!rank.step) continue;
      sums.step = std::max(sums.step, static_cast<double>(rank.step->step));
      // Every rank reports the loss of its whole job; the lowest rank's is
      // shown.
      if (std::isnan(sums.loss)) sums.loss = rank.step->loss;
      if (rank.step->seconds > 0) {
        sums.tokens_per_second +=
            static_cast<double>(rank.step->tokens) / rank.step->seconds;
      }
    }
  }
  for (const auto& [key, series] : from.stats->jobs.jobs()) {
    jobs[LabelOf(*from.stats, key)].stats.Add(series.stats);
  }
  if (from.stats->jobs.other().steps > 0) {
    jobs[{"other", "other"}].stats.Add(from.stats->jobs.other());
  }
  return jobs;
}

void AddLateOfJobs(const std::map<JobLabel, JobSums>& jobs, Families& to) {
  AddLate(
      {"sluice_job_late_copies_total",
       "A job's copies whose grant came after compute needed them."},
      {"sluice_job_late_copy_seconds_total",
       "Time for which a late copy of a job waited for its grant, over ranks."},
      [&](const auto& add) {
        for (const auto& [label, job] : jobs) {
          add(LabelsOf(label), job.stats.late);
        }
      },
      to);
}

// Adds families one after the other, each with a value per job.
class JobFamilies {
 public:
  JobFamilies(const std::map<JobLabel, JobSums>& jobs, Families& to)
      : jobs_(jobs), to_(to) {}

  // Adds a gauge of value(job) for each living job.
  void Gauge(const char* name, const char* help, auto value) {
    Each(name, help, MetricType::Gauge, value);
  }
  void Counter(const char* name, const char* help, auto value) {
    Each(name, help, MetricType::Counter, value);
  }

 private:
  void Each(const char* name, const char* help, MetricType type, auto value) {
    to_.Add(name, help, type);
    for (const auto& [label, job] : jobs_) {
      if (!job.lives && type == MetricType::Gauge) continue;
      to_.Value(LabelsOf(label), value(job));
    }
  }

  const std::map<JobLabel, JobSums>& jobs_;
  Families& to_;
};

void AddMemoryOfJobs(const Snapshot& from,
                     const std::map<JobLabel, JobSums>& jobs, Families& to) {
  const auto by_gpu = [&](const char* name, const char* help, auto value) {
    to.Add(name, help, MetricType::Gauge);
    for (const auto& [label, job] : jobs) {
      for (const auto& [gpu, bytes] : job.*value) {
        Labels labels = GpuLabels(from.gpus[gpu].gpu);
        for (const auto& each : LabelsOf(label)) labels.push_back(each);
        to.Value(std::move(labels), Count(bytes));
      }
    }
  };
  by_gpu("sluice_lease_bytes", "GPU memory leased to a job.",
         &JobSums::gpu_bytes);
  by_gpu("sluice_outside_lease_bytes",
         "GPU memory of a job outside its leases, as its ranks have told.",
         &JobSums::outside);
}

void AddStateOfJobs(JobFamilies& to) {
  to.Gauge("sluice_host_lease_bytes", "Pinned host memory leased to a job.",
           [](const JobSums& job) { return Count(job.host_bytes); });
  to.Gauge("sluice_job_ranks", "Attached ranks of a job on this node.",
           [](const JobSums& job) { return job.ranks; });
  to.Gauge("sluice_job_step", "The last step any rank of the job reported.",
           [](const JobSums& job) { return job.step; });
  to.Gauge("sluice_job_loss", "Loss of the last step reported; NaN before one.",
           [](const JobSums& job) { return job.loss; });
  to.Gauge("sluice_job_tokens_per_second",
           "Tokens of the last step over its time, summed over local ranks.",
           [](const JobSums& job) { return job.tokens_per_second; });
  to.Gauge("sluice_job_hbm_peak_bytes",
           "Highest GPU memory use a local rank of the job reported.",
           [](const JobSums& job) { return Count(job.hbm_peak); });
  to.Gauge(
      "sluice_job_alpha",
      "Fraction of rows swapped by the rank that swaps least; NaN: no plan.",
      [](const JobSums& job) { return job.alpha; });
}

void AddStepsOfJobs(JobFamilies& to) {
  to.Counter("sluice_job_steps_total", "Steps reported, every rank's counted.",
             [](const JobSums& job) { return job.stats.steps; });
  to.Counter("sluice_job_tokens_total", "Tokens trained on by local ranks.",
             [](const JobSums& job) { return job.stats.tokens; });
  to.Counter("sluice_job_stall_seconds_total",
             "Time compute waited for copies, summed over local ranks.",
             [](const JobSums& job) { return job.stats.stall_seconds; });
  to.Counter("sluice_job_grant_wait_seconds_total",
             "Time copies waited for bandwidth grants, over local ranks.",
             [](const JobSums& job) { return job.stats.grant_wait_seconds; });
}

}  // namespace

void AddJobs(const Snapshot& from, Families& to) {
  const std::map<JobLabel, JobSums> jobs = SumJobs(from);
  JobFamilies families(jobs, to);
  AddMemoryOfJobs(from, jobs, to);
  AddStateOfJobs(families);
  to.Add("sluice_step_seconds", "Steps as ranks report them.",
         MetricType::Histogram);
  for (const auto& [label, job] : jobs) {
    to.HistogramValue(LabelsOf(label), job.stats.step_seconds);
  }
  AddStepsOfJobs(families);
  AddLateOfJobs(jobs, to);
  families.Counter(
      "sluice_job_plan_mismatches_total",
      "Allocations that did not follow the memory plan.",
      [](const JobSums& job) { return job.stats.plan_mismatches; });
}

}  // namespace sluice::daemon
