#include <algorithm>
#include <cmath>
#include <compare>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "daemon/core/stats.h"
#include "daemon/metrics/metric_parts.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

// Jobs with the same name and user form one series, even in different cgroups.
// The jobs beyond the limit (daemon/core/stats.h) share one series, under
// a name that no user can choose.
struct JobLabel {
  std::string name, uid;
  auto operator<=>(const JobLabel&) const = default;
};

JobLabel LabelOf(const Stats& stats, const JobKey& job) {
  if (stats.jobs.Find(job) == nullptr) return {"other", "other"};
  return {job.name, std::to_string(job.principal.uid)};
}

Labels LabelsOf(const JobLabel& job) {
  return {{"sluice_job", job.name}, {"uid", job.uid}};
}

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

// gauge(name, help, value) adds value(job) of each living job.
void AddStateOfJobs(const auto& gauge) {
  gauge("sluice_host_lease_bytes", "Pinned host memory leased to a job.",
        [](const JobSums& job) { return Count(job.host_bytes); });
  gauge("sluice_job_ranks", "Attached ranks of a job on this node.",
        [](const JobSums& job) { return job.ranks; });
  gauge("sluice_job_step", "The last step any rank of the job reported.",
        [](const JobSums& job) { return job.step; });
  gauge("sluice_job_loss", "Loss of the last step reported; NaN before one.",
        [](const JobSums& job) { return job.loss; });
  gauge("sluice_job_tokens_per_second",
        "Tokens of the last step over its time, summed over local ranks.",
        [](const JobSums& job) { return job.tokens_per_second; });
  gauge("sluice_job_hbm_peak_bytes",
        "Highest GPU memory use a local rank of the job reported.",
        [](const JobSums& job) { return Count(job.hbm_peak); });
  gauge("sluice_job_alpha",
        "Fraction of rows swapped by the rank that swaps least; NaN: no plan.",
        [](const JobSums& job) { return job.alpha; });
}

void AddStepsOfJobs(const auto& counter) {
  counter("sluice_job_steps_total", "Steps reported, every rank's counted.",
          [](const JobSums& job) { return job.stats.steps; });
  counter("sluice_job_tokens_total", "Tokens trained on by local ranks.",
          [](const JobSums& job) { return job.stats.tokens; });
  counter("sluice_job_stall_seconds_total",
          "Time compute waited for copies, summed over local ranks.",
          [](const JobSums& job) { return job.stats.stall_seconds; });
  counter("sluice_job_grant_wait_seconds_total",
          "Time copies waited for bandwidth grants, over local ranks.",
          [](const JobSums& job) { return job.stats.grant_wait_seconds; });
}

struct CopySums {
  double weight = 0;
  std::optional<PlanCopies> plan;  // unset: no rank has a plan
};

using ByJob = std::map<std::pair<JobLabel, int>, CopySums>;  // by job and GPU

void Add(const PlanCopies& from, PlanCopies& to) {
  for (const int d : {kH2d, kD2h}) {
    to.demand.rates[d] += from.demand.rates[d];
    to.demand.step_bytes[d] += from.demand.step_bytes[d];
    to.promised[d] += from.promised[d];
  }
}

ByJob SumCopies(const Snapshot& from) {
  ByJob jobs;
  for (const JobSnapshot& job : from.jobs) {
    const JobLabel label = LabelOf(*from.stats, {job.principal, job.name});
    for (const RankSnapshot& rank : job.ranks) {
      if (rank.closed) continue;  // a closed session gets no more grants
      CopySums& sums = jobs[{label, rank.gpu.value()}];
      sums.weight += rank.weight;
      if (!rank.plan_copies) continue;
      if (!sums.plan) sums.plan.emplace();
      Add(*rank.plan_copies, *sums.plan);
    }
  }
  return jobs;
}

Labels LabelsOf(const Snapshot& from, const ByJob::key_type& key) {
  Labels labels = GpuLabels(from.gpus.at(key.second).gpu);
  for (const auto& each : LabelsOf(key.first)) labels.push_back(each);
  return labels;
}

void AddJobCopies(const Snapshot& from, Families& to) {
  const ByJob jobs = SumCopies(from);
  to.Add("sluice_job_link_weight",
         "What a job's ranks on a GPU count for in fair shares of its links.",
         MetricType::Gauge);
  for (const auto& [key, sums] : jobs) {
    to.Value(LabelsOf(from, key), sums.weight);
  }
  const auto each = [&](const char* name, const char* help, auto value) {
    to.Add(name, help, MetricType::Gauge);
    for (const auto& [key, sums] : jobs) {
      if (!sums.plan) continue;
      for (const auto& [direction, d] :
           {std::pair{"h2d", kH2d}, std::pair{"d2h", kD2h}}) {
        to.Value(With(LabelsOf(from, key), "direction", direction),
                 value(*sums.plan, d));
      }
    }
  };
  each("sluice_job_plan_bytes_per_second",
       "What a job's plan copies while a layer runs, where that is most.",
       [](const PlanCopies& plan, int d) { return plan.demand.rates[d]; });
  each("sluice_job_promised_bytes_per_second",
       "What of that the links promise beside others; the rest runs by fair "
       "shares.",
       [](const PlanCopies& plan, int d) { return plan.promised[d]; });
  each("sluice_job_plan_step_bytes",
       "What a job's plan copies in all of its layers, forward and backward "
       "once.",
       [](const PlanCopies& plan, int d) {
         return Count(plan.demand.step_bytes[d]);
       });
}

}  // namespace

void AddJobs(const Snapshot& from, Families& to) {
  const std::map<JobLabel, JobSums> jobs = SumJobs(from);
  const auto add = [&](const char* name, const char* help, MetricType type,
                       auto value) {
    to.Add(name, help, type);
    for (const auto& [label, job] : jobs) {
      if (!job.lives && type == MetricType::Gauge) continue;
      to.Value(LabelsOf(label), value(job));
    }
  };
  const auto gauge = [&](const char* name, const char* help, auto value) {
    add(name, help, MetricType::Gauge, value);
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    add(name, help, MetricType::Counter, value);
  };
  AddMemoryOfJobs(from, jobs, to);
  AddStateOfJobs(gauge);
  to.Add("sluice_step_seconds", "Steps as ranks report them.",
         MetricType::Histogram);
  for (const auto& [label, job] : jobs) {
    to.HistogramValue(LabelsOf(label), job.stats.step_seconds);
  }
  AddStepsOfJobs(counter);
  AddLateOfJobs(jobs, to);
  counter("sluice_job_plan_mismatches_total",
          "Allocations that did not follow the memory plan.",
          [](const JobSums& job) { return job.stats.plan_mismatches; });
  AddJobCopies(from, to);
}

}  // namespace sluice::daemon
