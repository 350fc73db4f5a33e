// Metrics of what jobs copy by their plans, and the bandwidth promised to them.
#include <map>
#include <optional>
#include <utility>

#include "daemon/metrics/job_labels.h"
#include "daemon/metrics/metric_parts.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

// Sums over the ranks of a job on one GPU.
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

}  // namespace

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

}  // namespace sluice::daemon
