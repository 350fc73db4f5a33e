#include "daemon/core/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/units.h"

namespace sluice::daemon {
namespace {

std::string_view KindName(PoolKind kind) {
  return kind == PoolKind::kGpu ? "GPU" : "host";
}

// Returns the refusal. Its message ends with a command that works as printed:
// it raises the limit enough for this request.
absl::Status OverBudget(const std::string& who, const std::string& flags,
                        PoolKind kind, Bytes asked, Bytes used, Bytes limit) {
  return ShortOf(
      ShortageIn(kind),
      fmt::format(
          "asked {} of {} memory, but {} uses {} of its limit of {}; an "
          "administrator can raise it: sluicectl budget set {} --{} {}",
          FormatBytes(asked), KindName(kind), who, FormatBytes(used),
          FormatBytes(limit), flags, kind == PoolKind::kGpu ? "gpu" : "host",
          ExactBytes(used + asked)));
}

absl::Status OverLimit(const std::string& who, const std::string& flags,
                       PoolKind kind, Bytes asked, Bytes limit) {
  return ShortOf(
      ShortageIn(kind),
      fmt::format("asked {} of {} memory, but the limit of {} is {}, and no "
                  "wait changes that; an administrator can raise it: "
                  "sluicectl budget set {} --{} {}",
                  FormatBytes(asked), KindName(kind), who, FormatBytes(limit),
                  flags, kind == PoolKind::kGpu ? "gpu" : "host",
                  ExactBytes(asked)));
}

bool Over(const Limits& limits, Bytes gpu, Bytes host) {
  return gpu > limits.gpu || host > limits.host;
}

}  // namespace

Budgets::Budgets(Limits principal_default, Limits job_default,
                 std::map<std::string, Limits> named_jobs)
    : principal_default_(principal_default), job_default_(job_default) {
  for (const auto& [job, limits] : named_jobs) named_jobs_[job] = {limits, {}};
}

std::string Budgets::FlagsOf(const Principal& principal) const {
  const std::string user = fmt::format("--user {}", principal.uid);
  return principals_.contains(principal)
             ? user + " --cgroup " + ShellWord(principal.cgroup)
             : user;
}

Limits Budgets::PrincipalLimits(const Principal& principal) const {
  if (const auto own = principals_.find(principal); own != principals_.end()) {
    return own->second.limits;
  }
  const auto uid = uids_.find(principal.uid);
  return uid != uids_.end() ? uid->second.limits : principal_default_;
}

Limits Budgets::JobLimits(const std::string& job) const {
  const auto named = named_jobs_.find(job);
  return named != named_jobs_.end() ? named->second.limits : job_default_;
}

Bytes Budgets::UsedBy(const Principal& principal, PoolKind kind) const {
  const auto used = used_.find(principal);
  return used != used_.end() ? used->second.of(kind) : Bytes(0);
}

Bytes Budgets::UsedBy(const JobKey& job, PoolKind kind) const {
  const auto used = used_by_job_.find(job);
  return used != used_by_job_.end() ? used->second.of(kind) : Bytes(0);
}

absl::Status Budgets::Admit(const JobKey& job, PoolKind kind,
                            Bytes size) const {
  const Principal& principal = job.principal;
  const Bytes by_principal = UsedBy(principal, kind);
  const Bytes principal_limit = PrincipalLimits(principal).of(kind);
  if (size > principal_limit - by_principal) {
    return OverBudget(Name(principal), FlagsOf(principal), kind, size,
                      by_principal, principal_limit);
  }
  const Bytes by_job = UsedBy(job, kind);
  const Bytes job_limit = JobLimits(job.name).of(kind);
  if (size > job_limit - by_job) {
    return OverBudget(fmt::format("job '{}'", job.name),
                      "--job " + ShellWord(job.name), kind, size, by_job,
                      job_limit);
  }
  return absl::OkStatus();
}

absl::Status Budgets::MayEver(const JobKey& job, PoolKind kind,
                              Bytes size) const {
  const Principal& principal = job.principal;
  const Bytes of_principal = PrincipalLimits(principal).of(kind);
  if (size > of_principal) {
    return OverLimit(Name(principal), FlagsOf(principal), kind, size,
                     of_principal);
  }
  const Bytes of_job = JobLimits(job.name).of(kind);
  if (size > of_job) {
    return OverLimit(fmt::format("job '{}'", job.name),
                     "--job " + ShellWord(job.name), kind, size, of_job);
  }
  return absl::OkStatus();
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
    if (used->second == Amounts()) {
      table.erase(used);
    }
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
      if (key.name == target.job && Over(limits, used.gpu, used.host)) {
        return refuse(fmt::format("job '{}'", target.job), used);
      }
    }
    named_jobs_[target.job] = {limits, std::move(by)};
    return absl::OkStatus();
  }
  if (const auto known = Get(target); !known.ok()) return known.status();
  for (const auto& [principal, used] : used_) {
    const bool meant =
        principal.uid == *target.uid &&
        (target.cgroup.empty() ? !principals_.contains(principal)
                               : principal.cgroup == target.cgroup);
    if (meant && Over(limits, used.gpu, used.host)) {
      return refuse(fmt::format("user {}", *target.uid), used);
    }
  }
  if (target.cgroup.empty()) {
    uids_[*target.uid] = {limits, std::move(by)};
  } else {
    principals_[{*target.uid, target.cgroup}] = {limits, std::move(by)};
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
  const Bytes limit = PrincipalLimits(principal).of(kind);
  return limit == Limits::kUnlimited ? limit : limit - UsedBy(principal, kind);
}

Bytes Budgets::LeftOfJob(const JobKey& job, PoolKind kind) const {
  const Bytes limit = JobLimits(job.name).of(kind);
  return limit == Limits::kUnlimited ? limit : limit - UsedBy(job, kind);
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
  for (const auto& [uid, given] : uids_) add(Of::kUser, {.uid = uid}, given);
  for (const auto& [principal, given] : principals_) {
    add(Of::kUser, {.uid = principal.uid, .cgroup = principal.cgroup}, given);
  }
  if (job_default_ != Limits()) add(Of::kEveryJob, {}, {job_default_, {}});
  for (const auto& [job, given] : named_jobs_) {
    add(Of::kJob, {.job = job}, given);
  }
  return lines;
}

void Budgets::Load(const Saved& saved) {
  named_jobs_ = saved.named_jobs;
  uids_ = saved.uids;
  principals_ = saved.principals;
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
  for (const auto& [job, given] : live.named_jobs) named_jobs_[job] = given;
  for (const auto& [uid, given] : live.uids) uids_[uid] = given;
  for (const auto& [who, given] : live.principals) principals_[who] = given;
}

void Budgets::CheckInvariants() const {
  std::map<Principal, Amounts> sums;
  for (const auto& [key, used] : used_by_job_) {
    sums[key.principal].gpu += used.gpu;
    sums[key.principal].host += used.host;
    SLUICE_CHECK(!Over(JobLimits(key.name), used.gpu, used.host));
  }
  SLUICE_CHECK(sums.size() == used_.size());
  for (const auto& [principal, used] : used_) {
    const Amounts& sum = sums.at(principal);
    SLUICE_CHECK(sum == used);
    SLUICE_CHECK(!Over(PrincipalLimits(principal), used.gpu, used.host));
  }
}

}  // namespace sluice::daemon
