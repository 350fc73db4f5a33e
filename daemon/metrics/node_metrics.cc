#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "daemon/metrics/metric_parts.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

void AddStates(const Labels& labels, const PoolSnapshot& pool, Families& to) {
  to.Value(With(labels, "state", "leased"), Count(pool.leased));
  to.Value(With(labels, "state", "free"), Count(pool.free));
  to.Value(With(labels, "state", "quarantined"), Count(pool.quarantined));
  to.Value(With(labels, "state", "lingering"), Count(pool.lingering));
  to.Value(With(labels, "state", "held_outside"), Count(pool.outside));
}

void AddPools(const Snapshot& from, Families& to) {
  const auto gpus = [&](const char* name, const char* help, auto value) {
    to.Add(name, help, MetricType::Gauge);
    for (const GpuSnapshot& gpu : from.gpus) {
      to.Value(GpuLabels(gpu.gpu), value(gpu));
    }
  };
  const auto numa = [](const PoolSnapshot& pool) {
    return Labels{{"numa_node", std::to_string(pool.id.ordinal)}};
  };
  const auto hosts = [&](const char* name, const char* help,
                         Bytes PoolSnapshot::*part) {
    to.Add(name, help, MetricType::Gauge);
    for (const PoolSnapshot& pool : from.hosts) {
      to.Value(numa(pool), Count(pool.*part));
    }
  };
  to.Add("sluice_held_outside_age_seconds",
         "Age of the last reading of memory held outside leases.",
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
  gpus("sluice_gpu_usable", "1; 0 for a GPU that was faulty at the start.",
       [](const GpuSnapshot& gpu) { return gpu.gpu.fault.empty() ? 1 : 0; });
  gpus("sluice_pool_kept_bytes",
       "The part of the free memory that exists as idle extents.",
       [](const GpuSnapshot& gpu) { return Count(gpu.pool.kept); });
  gpus("sluice_pool_reserved_bytes",
       "The part of the free memory that is reserved for users.",
       [](const GpuSnapshot& gpu) { return Count(gpu.pool.reserved); });
  to.Add("sluice_host_pool_bytes",
         "Pinned host memory of a NUMA node's pool by state.",
         MetricType::Gauge);
  for (const PoolSnapshot& pool : from.hosts) AddStates(numa(pool), pool, to);
  if (!from.host_memory.empty()) {
    to.Add("sluice_host_memory_info", "1; the kind of pinned host memory.",
           MetricType::Gauge);
    to.Value({{"kind", from.host_memory}}, 1);
  }
  hosts("sluice_host_pool_kept_bytes",
        "The part of the free host memory that exists as idle extents.",
        &PoolSnapshot::kept);
  hosts("sluice_host_pool_reserved_bytes",
        "The part of the free host memory that is reserved for users.",
        &PoolSnapshot::reserved);
  hosts("sluice_host_pool_ready_bytes",
        "The part of the free host memory that was made ahead of leases.",
        &PoolSnapshot::ready);
}

void AddWaiting(const Snapshot& from, Families& to) {
  struct Sum {
    double leases = 0, bytes = 0, oldest = 0;
  };
  std::map<PoolKind, Sum> sums = {{PoolKind::kGpu, {}}, {PoolKind::kHost, {}}};
  for (const WaitingSnapshot& lease : from.waiting) {
    Sum& sum = sums[lease.lease.asked.pool.kind];
    ++sum.leases;
    sum.bytes += Count(lease.lease.asked.size);
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
  each("sluice_waiting_bytes", "Bytes that waiting leases request.",
       [](const Sum& sum) { return sum.bytes; });
  each("sluice_waiting_oldest_seconds", "Age of the oldest waiting lease.",
       [](const Sum& sum) { return sum.oldest; });
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

// Only copies with a stated deadline can be late.
void AddLateOfGpus(const Snapshot& from, Families& to) {
  AddLate(
      {"sluice_late_copies_total",
       "Copies whose grant came after compute needed them."},
      {"sluice_late_copy_seconds_total",
       "Time that late copies waited for grants, summed over ranks."},
      [&](const auto& add) {
        for (size_t i = 0; i < from.gpus.size(); ++i) {
          add(GpuLabels(from.gpus[i].gpu), from.stats->gpus[i].late);
        }
      },
      to);
}

void AddLinks(const Snapshot& from, Families& to) {
  to.Add("sluice_link_capacity_bytes_per_second",
         "Bandwidth of a link between GPUs and host memory, if known.",
         MetricType::Gauge);
  for (const LinkSpeed& link : from.links) {
    for (const auto& [direction, speed] :
         {std::pair{"h2d", link.h2d_bytes_per_second},
          std::pair{"d2h", link.d2h_bytes_per_second},
          std::pair{"both", link.both_bytes_per_second}}) {
      if (speed > 0) {
        to.Value({{"link", link.name},
                  {"parent", link.parent},
                  {"direction", direction}},
                 speed);
      }
    }
  }
}

void AddBudgets(const Snapshot& from, Audience audience, Families& to) {
  to.Add("sluice_budget_limit_bytes", "Limits that the policy sets.",
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
  each("sluice_quota_used", "Countable objects that all users hold together.",
       MetricType::Gauge,
       [&](Resource what, size_t i) { return InUnits(what, from.used[i]); });
  each("sluice_quota_limit", "Limit on what all users hold together.",
       MetricType::Gauge, [&](Resource what, size_t i) {
         return limit(what, from.shares[i].all);
       });
  each("sluice_quota_limit_per_user", "Limit on what one user holds.",
       MetricType::Gauge, [&](Resource what, size_t i) {
         return limit(what, from.shares[i].each);
       });
  each("sluice_quota_refusals_total", "Requests refused by a quota.",
       MetricType::Counter, [&](Resource what, size_t i) {
         return limit(what, static_cast<int64_t>(from.refused[i]));
       });
  if (audience != Audience::kOperators) return;
  to.Add("sluice_quota_user_used", "Countable objects that one user holds.",
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

}  // namespace

void AddNode(const Snapshot& from, Audience audience, Families& to) {
  AddPools(from, to);
  AddWaiting(from, to);
  AddSwap(from, to);
  AddLateOfGpus(from, to);
  AddLinks(from, to);
  AddBudgets(from, audience, to);
  AddQuotas(from.quotas, audience, to);
}

}  // namespace sluice::daemon
