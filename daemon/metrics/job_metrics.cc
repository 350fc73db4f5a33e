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
// The jobs beyond the limit (daemon/core/stats.h) share one series, with a uid
// that no user has.
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

// Sums over a job's ranks on one GPU.
struct GpuSums {
  Bytes leased;
  std::optional<Bytes> outside;    // unset: no rank reported it
  std::optional<double> weight;    // unset: all sessions are closed
  std::optional<PlanCopies> plan;  // unset: no rank has a plan
};

struct JobSums {
  bool lives = false;  // false: ended, so only its counters are shown
  std::map<DeviceIndex, GpuSums> gpus;
  Bytes host_bytes, hbm_peak;
  double ranks = 0, step = 0, loss = NAN, tokens_per_second = 0;
  double alpha = NAN;  // of the rank that swaps least
  JobStats stats;
};

// Returns the smallest alpha of the plan's ranks; NaN if the job has no plan or
// an infeasible one.
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

void Add(const RankSnapshot& rank, GpuSums& to) {
  to.leased += rank.gpu_bytes;
  if (rank.outside) to.outside = to.outside.value_or(Bytes()) + *rank.outside;
  if (rank.closed) return;  // a closed session gets no more grants
  to.weight = to.weight.value_or(0) + rank.weight;
  if (!rank.plan_copies) return;
  if (!to.plan) to.plan.emplace();
  for (const int d : {kH2d, kD2h}) {
    to.plan->demand.rates[d] += rank.plan_copies->demand.rates[d];
    to.plan->demand.step_bytes[d] += rank.plan_copies->demand.step_bytes[d];
    to.plan->promised[d] += rank.plan_copies->promised[d];
  }
}

std::map<JobLabel, JobSums> SumJobs(const Snapshot& from) {
  std::map<JobLabel, JobSums> jobs;
  for (const JobSnapshot& job : from.jobs) {
    JobSums& sums = jobs[LabelOf(*from.stats, {job.principal, job.name})];
    sums.lives = true;
    sums.alpha = std::fmin(sums.alpha, LeastAlpha(from, job.plan));
    for (const RankSnapshot& rank : job.ranks) {
      if (!rank.closed) ++sums.ranks;
      Add(rank, sums.gpus[rank.gpu]);
      sums.host_bytes += rank.host_bytes;
      sums.hbm_peak = std::max(sums.hbm_peak, rank.hbm_peak);
      if (!rank.step) continue;
      sums.step = std::max(sums.step, static_cast<double>(rank.step->step));
      // Every rank reports its job's loss; the lowest rank's is shown.
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

// Adds a gauge by job and GPU. value(sums, show) calls show(labels, value) for
// each series of a job on a GPU.
void AddByGpu(const Snapshot& from, const std::map<JobLabel, JobSums>& jobs,
              const char* name, const char* help, auto value, Families& to) {
  to.Add(name, help, MetricType::Gauge);
  for (const auto& [label, job] : jobs) {
    for (const auto& [gpu, sums] : job.gpus) {
      Labels labels = GpuLabels(from.gpus.at(gpu.value()).gpu);
      for (const auto& each : LabelsOf(label)) labels.push_back(each);
      value(sums, [&](Labels more, double of) {
        more.insert(more.begin(), labels.begin(), labels.end());
        to.Value(std::move(more), of);
      });
    }
  }
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
  const auto by_gpu = [&](const char* name, const char* help, auto value) {
    AddByGpu(from, jobs, name, help, value, to);
  };
  const auto of_plan = [&](const char* name, const char* help, auto value) {
    by_gpu(name, help, [&](const GpuSums& gpu, auto show) {
      if (!gpu.plan) return;
      show({{"direction", "h2d"}}, value(*gpu.plan, kH2d));
      show({{"direction", "d2h"}}, value(*gpu.plan, kD2h));
    });
  };
  by_gpu("sluice_lease_bytes", "GPU memory leased to a job.",
         [](const GpuSums& gpu, auto show) { show({}, Count(gpu.leased)); });
  by_gpu("sluice_outside_lease_bytes",
         "GPU memory of a job outside its leases, as its ranks report.",
         [](const GpuSums& gpu, auto show) {
           if (gpu.outside) show({}, Count(*gpu.outside));
         });
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
  to.Add("sluice_step_seconds", "Steps as ranks report them.",
         MetricType::Histogram);
  for (const auto& [label, job] : jobs) {
    to.HistogramValue(LabelsOf(label), job.stats.step_seconds);
  }
  counter("sluice_job_steps_total", "Steps reported, summed over local ranks.",
          [](const JobSums& job) { return job.stats.steps; });
  counter("sluice_job_tokens_total", "Tokens trained on by local ranks.",
          [](const JobSums& job) { return job.stats.tokens; });
  counter("sluice_job_stall_seconds_total",
          "Time compute waited for copies, summed over local ranks.",
          [](const JobSums& job) { return job.stats.stall_seconds; });
  counter("sluice_job_grant_wait_seconds_total",
          "Time copies waited for bandwidth grants, over local ranks.",
          [](const JobSums& job) { return job.stats.grant_wait_seconds; });
  AddLate(
      {"sluice_job_late_copies_total",
       "A job's copies whose grant came after compute needed them."},
      {"sluice_job_late_copy_seconds_total",
       "Time that a job's late copies waited for grants, summed over ranks."},
      [&](const auto& each) {
        for (const auto& [label, job] : jobs) {
          each(LabelsOf(label), job.stats.late);
        }
      },
      to);
  counter("sluice_job_plan_mismatches_total",
          "Allocations that did not follow the memory plan.",
          [](const JobSums& job) { return job.stats.plan_mismatches; });
  by_gpu("sluice_job_link_weight",
         "What a job's ranks on a GPU count for in fair shares of its links.",
         [](const GpuSums& gpu, auto show) {
           if (gpu.weight) show({}, *gpu.weight);
         });
  of_plan("sluice_job_plan_bytes_per_second",
          "The highest rate at which a job's plan copies, while a layer runs.",
          [](const PlanCopies& plan, int d) { return plan.demand.rates[d]; });
  of_plan("sluice_job_promised_bytes_per_second",
          "The part of a job's plan rate that links promise; the rest gets "
          "fair shares.",
          [](const PlanCopies& plan, int d) { return plan.promised[d]; });
  of_plan("sluice_job_plan_step_bytes",
          "What a job's plan copies in all of its layers, forward and backward "
          "once.",
          [](const PlanCopies& plan, int d) {
            return Count(plan.demand.step_bytes[d]);
          });
}

}  // namespace sluice::daemon
