#include "daemon/metrics/prometheus_text.h"

#include <map>
#include <utility>
#include <vector>

#include "daemon/metrics/families.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

Labels GpuLabels(const GpuConfig& gpu) {
  return {{"gpu", std::to_string(gpu.index.value())}, {"UUID", gpu.uuid}};
}

Labels With(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

double Count(Bytes bytes) { return static_cast<double>(bytes.count()); }

void AddStates(const Labels& labels, const PoolSnapshot& pool, Families& to) {
  to.Value(With(labels, "state", "leased"), Count(pool.leased));
  to.Value(With(labels, "state", "free"), Count(pool.free));
  to.Value(With(labels, "state", "quarantined"), Count(pool.quarantined));
  to.Value(With(labels, "state", "lingering"), Count(pool.lingering));
  to.Value(With(labels, "state", "held_outside"), Count(pool.outside));
}

void AddPools(const Snapshot& from, Families& to) {
  to.Add("sluice_held_outside_age_seconds",
         "Since the device was asked what is held outside leases.",
         MetricType::Gauge);
  if (from.outside_at != absl::InfinitePast()) {
    to.Value({}, absl::ToDoubleSeconds(from.now - from.outside_at));
  }
  to.Add("sluice_pool_bytes",
         "Memory of a GPU's pool by state; the states add up to the pool.",
         MetricType::Gauge);
  for (const GpuSnapshot& gpu : from.gpus) {
    AddStates(GpuLabels(gpu.gpu), gpu.pool, to);
  }
  to.Add("sluice_pool_kept_bytes",
         "The part of the free memory that exists as idle extents.",
         MetricType::Gauge);
  for (const GpuSnapshot& gpu : from.gpus) {
    to.Value(GpuLabels(gpu.gpu), Count(gpu.pool.kept));
  }
  to.Add("sluice_pool_reserved_bytes",
         "The part of the free memory that only those may have for whom it is "
         "reserved.",
         MetricType::Gauge);
  for (const GpuSnapshot& gpu : from.gpus) {
    to.Value(GpuLabels(gpu.gpu), Count(gpu.pool.reserved));
  }
  const auto numa = [](const PoolSnapshot& pool) {
    return Labels{{"numa_node", std::to_string(pool.id.ordinal)}};
  };
  to.Add("sluice_host_pool_bytes",
         "Pinned host memory of a NUMA node's pool by state.",
         MetricType::Gauge);
  for (const PoolSnapshot& pool : from.hosts) AddStates(numa(pool), pool, to);
  if (!from.host_memory.empty()) {
    to.Add("sluice_host_memory_info", "1; the kind of pinned host memory.",
           MetricType::Gauge);
    to.Value({{"kind", from.host_memory}}, 1);
  }
  to.Add("sluice_host_pool_kept_bytes",
         "The part of the free host memory that exists as idle extents.",
         MetricType::Gauge);
  for (const PoolSnapshot& pool : from.hosts) {
    to.Value(numa(pool), Count(pool.kept));
  }
  to.Add("sluice_host_pool_reserved_bytes",
         "The part of the free host memory that is reserved for some.",
         MetricType::Gauge);
  for (const PoolSnapshot& pool : from.hosts) {
    to.Value(numa(pool), Count(pool.reserved));
  }
  to.Add("sluice_host_pool_ready_bytes",
         "The part of the free host memory that was made ahead of leases.",
         MetricType::Gauge);
  for (const PoolSnapshot& pool : from.hosts) {
    to.Value(numa(pool), Count(pool.ready));
  }
}

// Leases that wait, by the kind of memory.
void AddWaiting(const Snapshot& from, Families& to) {
  struct Sum {
    double leases = 0, bytes = 0, oldest = 0;
  };
  std::map<PoolKind, Sum> sums = {{PoolKind::kGpu, {}}, {PoolKind::kHost, {}}};
  for (const WaitingSnapshot& lease : from.waiting) {
    Sum& sum = sums[lease.pool.kind];
    ++sum.leases;
    sum.bytes += Count(lease.size);
    sum.oldest = std::fmax(sum.oldest, absl::ToDoubleSeconds(lease.elapsed));
  }
  const auto each = [&](const char* name, const char* help, auto value) {
    to.Add(name, help, MetricType::Gauge);
    for (const auto& [kind, sum] : sums) {
      to.Value({{"memory", kind == PoolKind::kGpu ? "gpu" : "host"}},
               value(sum));
    }
  };
  each("sluice_waiting_leases", "Leases that wait for memory.",
       [](const Sum& sum) { return sum.leases; });
  each("sluice_waiting_bytes", "What they ask for.",
       [](const Sum& sum) { return sum.bytes; });
  each("sluice_waiting_oldest_seconds", "How long the oldest has waited.",
       [](const Sum& sum) { return sum.oldest; });
}

// Jobs of one name and user, whatever their cgroup, are one series; those that
// are too many are one together, which no user can be called like.
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

struct JobSums {
  bool lives = false;  // else it has ended, and only what was counted is told
  std::map<uint64_t, Bytes> gpu_bytes, outside;  // by GPU
  Bytes host_bytes, hbm_peak;
  double ranks = 0, step = 0, loss = NAN, tokens_per_second = 0;
  double alpha = NAN;  // of the rank that swaps least
  JobStats stats;
};

// NaN: it has no plan, or one that does not fit.
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
      // All ranks report the job's loss; the lowest rank's is shown.
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

void AddJobs(const Snapshot& from, Families& to) {
  const std::map<JobLabel, JobSums> jobs = SumJobs(from);
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
  const auto each = [&](const char* name, const char* help, MetricType type,
                        auto value) {
    to.Add(name, help, type);
    for (const auto& [label, job] : jobs) {
      if (!job.lives && type == MetricType::Gauge) continue;
      to.Value(LabelsOf(label), value(job));
    }
  };
  const auto gauge = [&](const char* name, const char* help, auto value) {
    each(name, help, MetricType::Gauge, value);
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    each(name, help, MetricType::Counter, value);
  };
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
  counter("sluice_job_plan_mismatches_total",
          "Allocations that did not follow the memory plan.",
          [](const JobSums& job) { return job.stats.plan_mismatches; });
}

void AddBudgets(const Snapshot& from, Audience audience, Families& to) {
  to.Add("sluice_budget_limit_bytes",
         "Limits that are set, whether or not they are used.",
         MetricType::Gauge);
  for (const LimitLine& line : from.limits) {
    const bool names = line.target.uid || !line.target.cgroup.empty() ||
                       !line.target.job.empty();
    if (names && audience != Audience::kOperators) continue;
    Labels labels = {{"of", std::string(Name(line.of))}};
    const auto add = [&](const char* name, const std::string& value) {
      if (!value.empty()) labels = With(std::move(labels), name, value);
    };
    add("uid", line.target.uid ? std::to_string(*line.target.uid) : "");
    add("cgroup", line.target.cgroup);
    add("sluice_job", line.target.job);
    for (const auto& [kind, limit] : {std::pair{"gpu", line.limits.gpu},
                                      std::pair{"host", line.limits.host}}) {
      if (limit == Limits::kUnlimited) continue;
      to.Value(With(labels, "memory", kind), Count(limit));
    }
  }
}

void AddQuotas(const QuotasSnapshot& from, Audience audience, Families& to) {
  const auto each = [&](const char* name, const char* help, MetricType type,
                        auto value) {
    to.Add(name, help, type);
    for (size_t i = 0; i < kResources; ++i) {
      const auto what = static_cast<Resource>(i);
      const std::optional<double> shown = value(what, i);
      if (shown) to.Value({{"of", Name(what)}}, *shown);
    }
  };
  const auto limit = [](Resource what, int64_t of) {
    return IsSharedInTurns(what) ? std::optional<double>()
                                 : static_cast<double>(of);
  };
  each("sluice_quota_used",
       "What all users together have of a countable thing.", MetricType::Gauge,
       [&](Resource what, size_t i) { return InUnits(what, from.used[i]); });
  each("sluice_quota_limit", "What all users together may have.",
       MetricType::Gauge, [&](Resource what, size_t i) {
         return limit(what, from.shares[i].all);
       });
  each("sluice_quota_limit_per_user", "What one user may have.",
       MetricType::Gauge, [&](Resource what, size_t i) {
         return limit(what, from.shares[i].each);
       });
  each("sluice_quota_refusals_total", "Refusals because of such a limit.",
       MetricType::Counter, [&](Resource what, size_t i) {
         return limit(what, static_cast<int64_t>(from.refused[i]));
       });
  if (audience != Audience::kOperators) return;
  to.Add("sluice_quota_user_used", "What one user has of a countable thing.",
         MetricType::Gauge);
  for (const auto& [who, amounts] : from.users) {
    for (size_t i = 0; i < kResources; ++i) {
      if (amounts[i] == 0) continue;
      const auto what = static_cast<Resource>(i);
      to.Value({{"of", Name(what)},
                {"uid", std::to_string(who.uid)},
                {"cgroup", who.cgroup}},
               InUnits(what, amounts[i]));
    }
  }
}

void AddFrozen(bool frozen, Families& to) {
  to.Gauge("sluice_frozen",
           "1 while sluiced keeps what jobs hold and grants nothing.",
           frozen ? 1 : 0);
}

void AddProcess(const ProcessStats& from, Families& to) {
  to.Counter("process_cpu_seconds_total", "CPU time of sluiced.",
             from.cpu_seconds);
  to.Gauge("process_resident_memory_bytes", "Resident memory of sluiced.",
           from.resident_bytes);
  to.Gauge("process_virtual_memory_bytes", "Address space of sluiced.",
           from.virtual_bytes);
  to.Gauge("process_open_fds", "File descriptors sluiced has open.",
           from.open_fds);
  to.Gauge("process_max_fds", "File descriptors sluiced may have open.",
           from.max_fds);
  to.Gauge("process_start_time_seconds",
           "When sluiced started, in seconds since 1970.",
           from.start_time_seconds);
}

void AddLinks(const Snapshot& from, Families& to) {
  to.Add("sluice_link_capacity_bytes_per_second",
         "What a link between GPUs and host memory carries; only where known.",
         MetricType::Gauge);
  for (const LinkSpeed& link : from.links) {
    for (const auto& [direction, speed] :
         {std::pair{"h2d", link.h2d_bytes_per_second},
          std::pair{"d2h", link.d2h_bytes_per_second},
          std::pair{"both", link.both_bytes_per_second}}) {
      if (speed > 0) {
        to.Value({{"link", link.name}, {"direction", direction}}, speed);
      }
    }
  }
}

void AddSwap(const Snapshot& from, Families& to) {
  to.Add("sluice_swap_bytes_total",
         "Bytes copied between a GPU and host memory, by ranks' use pages.",
         MetricType::Counter);
  for (size_t i = 0; i < from.gpus.size(); ++i) {
    const Labels labels = GpuLabels(from.gpus[i].gpu);
    const GpuStats& gpu = from.stats->gpus[i];
    to.Value(With(labels, "direction", "h2d"), Count(gpu.h2d));
    to.Value(With(labels, "direction", "d2h"), Count(gpu.d2h));
  }
}

void AddLosses(const Snapshot& from, Families& to) {
  to.Counter("sluice_log_lines_dropped_total",
             "Lines that are not in the log because nobody read it.",
             from.log_lines_dropped);
  to.Counter("sluice_log_lines_suppressed_total",
             "Lines that are not in the log because one user caused too many.",
             from.log_lines_suppressed);
  to.Gauge("sluice_descriptors_closing",
           "Descriptors that clients sent, and sockets of ended sessions, "
           "that wait to be closed.",
           static_cast<double>(from.descriptors_closing));
}

void AddKeeping(const Snapshot& from, Families& to) {
  to.Add("sluice_kept",
         "1 while what jobs hold outlives this sluiced, 0 where that has "
         "ended; only where somebody keeps descriptors.",
         MetricType::Gauge);
  if (from.kept) to.Value({}, *from.kept ? 1 : 0);
  to.Counter("sluice_keepers_replaced_total",
             "Keepers that died and have a successor.", from.keepers_replaced);
}

void AddService(const Snapshot& from, Families& to) {
  const Stats& stats = *from.stats;
  to.Add("sluice_build_info", "Always 1; the version is a label.",
         MetricType::Gauge);
  to.Value({{"version", SLUICE_VERSION}, {"driver", from.driver}}, 1);
  to.Gauge("sluice_uptime_seconds", "Time since the daemon started.",
           absl::ToDoubleSeconds(from.uptime));
  to.Gauge("sluice_drained",
           "1 while an administrator has drained the node, else 0.",
           from.drain ? 1 : 0);
  to.Add("sluice_sessions", "Connections by state.", MetricType::Gauge);
  int closed = 0;
  for (const JobSnapshot& job : from.jobs) {
    for (const RankSnapshot& rank : job.ranks) closed += rank.closed;
  }
  to.Value({{"state", "attached"}}, from.sessions - from.half_open - closed);
  to.Value({{"state", "half_open"}}, from.half_open);
  to.Value({{"state", "closed"}}, closed);
  to.Gauge("sluice_export_handles",
           "Physical memory handles the daemon holds exported.",
           static_cast<double>(from.extents));
  to.Counter("sluice_sessions_opened_total", "Connections accepted.",
             stats.sessions_opened);
  to.Counter("sluice_sessions_refused_total",
             "Connections ended because there were too many, or said no Hello.",
             stats.sessions_refused);
  to.CounterBy("sluice_client_deaths_total",
               "Rank sessions that did not end by themselves.", "reason",
               stats.client_deaths);
  to.Counter("sluice_leases_granted_total", "Leases granted.",
             stats.leases_granted);
  to.CounterBy("sluice_leases_refused_total", "Leases refused.", "reason",
               stats.leases_refused);
  to.CounterBy("sluice_lease_waits_total", "Waits of leases that ended.",
               "result", stats.waits);
  to.Counter("sluice_extents_made_total", "Extents made by the device.",
             stats.extents.made);
  to.Counter("sluice_extents_reused_total",
             "Idle extents given to their principal again.",
             stats.extents.reused);
  to.Counter("sluice_extents_destroyed_total",
             "Idle extents destroyed to make room for another size or "
             "principal, with time, or with their principal's last process.",
             stats.extents.destroyed);
  to.CounterBy("sluice_plans_total", "Plans by result.", "result", stats.plans);
  to.CounterBy("sluice_plan_changes_total",
               "New plans for running jobs, and what became of them.", "result",
               stats.plan_changes);
  to.CounterBy("sluice_plan_units_total",
               "Units (repeated pieces of work) of plans, by whether their "
               "memory was planned then or known before.",
               "result", stats.plan_units);
  to.AddHistogram("sluice_lease_seconds",
                  "From a lease's request until its extents are there.",
                  stats.lease_seconds);
  to.AddHistogram("sluice_plan_seconds",
                  "From the last profile until the worker's plan is checked.",
                  stats.plan_seconds);
  to.AddHistogram("sluice_map_seconds",
                  "How long ranks took to map a lease, as they report it.",
                  stats.map_seconds);
  to.AddHistogram("sluice_grant_wait_seconds",
                  "Time a step's copies waited for bandwidth grants.",
                  stats.grant_wait_seconds);
  to.Counter("sluice_grant_stale_periods_total",
             "Times the heartbeat came so late that ranks ran without grants.",
             from.grant_stale_periods);
}

}  // namespace

std::string FrozenText(const ProcessStats& process) {
  Families families;
  AddFrozen(true, families);
  AddProcess(process, families);
  return families.Text();
}

std::string PrometheusText(const Snapshot& snapshot,
                           const ProcessStats& process, Audience audience) {
  SLUICE_CHECK(snapshot.stats.has_value());
  Families families;
  AddFrozen(false, families);
  AddService(snapshot, families);
  AddKeeping(snapshot, families);
  AddLosses(snapshot, families);
  AddPools(snapshot, families);
  AddWaiting(snapshot, families);
  AddSwap(snapshot, families);
  AddLinks(snapshot, families);
  AddBudgets(snapshot, audience, families);
  AddQuotas(snapshot.quotas, audience, families);
  AddProcess(process, families);
  if (audience == Audience::kOperators) AddJobs(snapshot, families);
  return families.Text();
}

}  // namespace sluice::daemon
