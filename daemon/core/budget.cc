#include "daemon/core/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/find.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/units.h"

namespace sluice::daemon {
namespace {

bool Over(const Limits& limits, const Amounts& used) {
  return used.gpu > limits.gpu || used.host > limits.host;
}

Bytes LeftUnder(Bytes limit, Bytes used) {
  return limit == Limits::kUnlimited ? limit : limit - used;
}

}  // namespace

Budgets::Budgets(Limits principal_default, Limits job_default,
                 std::map<std::string, Limits> named_jobs)
    : principal_default_(principal_default), job_default_(job_default) {
  for (const auto& [job, limits] : named_jobs) {
    set_.named_jobs[job] = {limits, {}};
  }
}

Limits Budgets::PrincipalLimits(const Principal& principal) const {
  const Given* given = FindOrNull(set_.principals, principal);
  if (given == nullptr) given = FindOrNull(set_.uids, principal.uid);
  return given != nullptr ? given->limits : principal_default_;
}

Limits Budgets::JobLimits(const std::string& job) const {
  const Given* named = FindOrNull(set_.named_jobs, job);
  return named != nullptr ? named->limits : job_default_;
}

absl::Status Budgets::Check(const JobKey& job, PoolKind kind, Bytes size,
                            bool used) const {
  const auto check = [&](const std::string& who, const std::string& flags,
                         Bytes limit, Bytes uses) {
    if (size <= limit - uses) return absl::OkStatus();
    const std::string why =
        used ? fmt::format("{} uses {} of its limit of {}", who,
                           FormatBytes(uses), FormatBytes(limit))
             : fmt::format("the limit of {} is {}, and no wait changes that",
                           who, FormatBytes(limit));
    const bool gpu = kind == PoolKind::kGpu;
    // The printed command raises the limit enough for this request.
    return ShortOf(
        ShortageIn(kind),
        fmt::format("asked {} of {} memory, but {}; an administrator can raise "
                    "it: sluicectl budget set {} --{} {}",
                    FormatBytes(size), gpu ? "GPU" : "host", why, flags,
                    gpu ? "gpu" : "host", ExactBytes(uses + size)));
  };
  const Principal& who = job.principal;
  std::string user = fmt::format("--user {}", who.uid);
  if (set_.principals.contains(who)) {
    user += " --cgroup " + ShellWord(who.cgroup);
  }
  const Amounts none;
  SLUICE_RETURN_IF_ERROR(check(Name(who), user, PrincipalLimits(who).of(kind),
                               (used ? FindOr(used_, who) : none).of(kind)));
  return check(fmt::format("job '{}'", job.name),
               "--job " + ShellWord(job.name), JobLimits(job.name).of(kind),
               (used ? FindOr(used_by_job_, job) : none).of(kind));
}

void Budgets::Charge(const JobKey& job, PoolKind kind, Bytes size) {
  used_[job.principal].of(kind) += size;
  used_by_job_[job].of(kind) += size;
}

void Budgets::Refund(const JobKey& job, PoolKind kind, Bytes size) {
  const auto drop = [&](auto& table, const auto& key) {
    const auto used = table.find(key);
    SLUICE_CHECK(used != table.end() && used->second.of(kind) >= size);
    used->second.of(kind) -= size;
    if (used->second == Amounts()) table.erase(used);
  };
  drop(used_, job.principal);
  drop(used_by_job_, job);
}

absl::Status Budgets::Set(const BudgetTarget& target, const Limits& limits,
                          SetBy by) {
  const auto refuse = [&](const std::string& who, const Amounts& used) {
    return absl::FailedPreconditionError(fmt::format(
        "{} already uses {} of GPU and {} of host memory, more than the new "
        "limit; memory in use cannot be taken back: evict it first, or wait",
        who, FormatBytes(used.gpu), FormatBytes(used.host)));
  };
  if (!target.job.empty()) {
    for (const auto& [key, used] : used_by_job_) {
      if (key.name == target.job && Over(limits, used)) {
        return refuse(fmt::format("job '{}'", target.job), used);
      }
    }
    set_.named_jobs[target.job] = {limits, std::move(by)};
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(Get(target).status());
  for (const auto& [principal, used] : used_) {
    const bool meant =
        principal.uid == *target.uid &&
        (target.cgroup.empty() ? !set_.principals.contains(principal)
                               : principal.cgroup == target.cgroup);
    if (meant && Over(limits, used)) {
      return refuse(fmt::format("user {}", *target.uid), used);
    }
  }
  if (target.cgroup.empty()) {
    set_.uids[*target.uid] = {limits, std::move(by)};
  } else {
    set_.principals[{*target.uid, target.cgroup}] = {limits, std::move(by)};
  }
  return absl::OkStatus();
}

absl::StatusOr<Limits> Budgets::Get(const BudgetTarget& target) const {
  if (!target.job.empty()) return JobLimits(target.job);
  if (!target.uid.has_value()) {
    return absl::InvalidArgumentError(
        "a budget is of a user or of a job: name one");
  }
  return PrincipalLimits({*target.uid, target.cgroup});
}

Bytes Budgets::Left(const JobKey& job, PoolKind kind) const {
  return std::min(LeftOfPrincipal(job.principal, kind), LeftOfJob(job, kind));
}

Bytes Budgets::LeftOfPrincipal(const Principal& principal,
                               PoolKind kind) const {
  return LeftUnder(PrincipalLimits(principal).of(kind),
                   FindOr(used_, principal).of(kind));
}

Bytes Budgets::LeftOfJob(const JobKey& job, PoolKind kind) const {
  return LeftUnder(JobLimits(job.name).of(kind),
                   FindOr(used_by_job_, job).of(kind));
}

std::vector<BudgetLine> Budgets::Lines() const {
  std::vector<BudgetLine> lines;
  for (const auto& [principal, used] : used_) {
    lines.push_back(
        {principal, "", used.gpu, used.host, PrincipalLimits(principal)});
  }
  for (const auto& [key, used] : used_by_job_) {
    lines.push_back(
        {key.principal, key.name, used.gpu, used.host, JobLimits(key.name)});
  }
  return lines;
}

std::vector<LimitLine> Budgets::SetLimits() const {
  using Of = LimitLine::Of;
  std::vector<LimitLine> lines;
  const auto add = [&](Of of, BudgetTarget target, const Given& given) {
    lines.push_back({of, std::move(target), given.limits, given.by});
  };
  if (principal_default_ != Limits()) {
    add(Of::kEveryUser, {}, {principal_default_, {}});
  }
  for (const auto& [uid, given] : set_.uids) {
    add(Of::kUser, {.uid = uid}, given);
  }
  for (const auto& [principal, given] : set_.principals) {
    add(Of::kUser, {.uid = principal.uid, .cgroup = principal.cgroup}, given);
  }
  if (job_default_ != Limits()) add(Of::kEveryJob, {}, {job_default_, {}});
  for (const auto& [job, given] : set_.named_jobs) {
    add(Of::kJob, {.job = job}, given);
  }
  return lines;
}

Budgets::Saved Budgets::Live() const {
  Saved live = Save();
  const auto keep = [](auto& given) {
    std::erase_if(given, [](const auto& each) { return !each.second.by.live; });
  };
  keep(live.named_jobs);
  keep(live.uids);
  keep(live.principals);
  return live;
}

void Budgets::SetLive(const Saved& live) {
  for (const auto& [job, given] : live.named_jobs) set_.named_jobs[job] = given;
  for (const auto& [uid, given] : live.uids) set_.uids[uid] = given;
  for (const auto& [who, given] : live.principals) set_.principals[who] = given;
}

void Budgets::CheckInvariants() const {
  std::map<Principal, Amounts> sums;
  for (const auto& [key, used] : used_by_job_) {
    sums[key.principal] += used;
    SLUICE_CHECK(!Over(JobLimits(key.name), used));
  }
  SLUICE_CHECK(sums == used_);
  for (const auto& [principal, used] : used_) {
    SLUICE_CHECK(!Over(PrincipalLimits(principal), used));
  }
}

}  // namespace sluice::daemon
