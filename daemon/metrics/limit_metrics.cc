#include <optional>
#include <utility>

#include "daemon/metrics/metric_parts.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

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

}  // namespace

void AddLimits(const Snapshot& from, Audience audience, Families& to) {
  AddBudgets(from, audience, to);
  AddQuotas(from.quotas, audience, to);
}

}  // namespace sluice::daemon
