// Budgets: how much memory a principal, and each of its jobs, may hold.
//
// A limit is a sum over the node (all GPUs, or all NUMA nodes). Leased,
// lingering and quarantined memory counts; idle extents kept for a principal do
// not. Limits that an administrator sets for a principal or a job take
// precedence over defaults.
// Thread safety: one thread (core.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/named_counts.h"
#include "daemon/core/node/types.h"

namespace sluice::daemon {

// What a limit binds: a principal (an empty cgroup means every cgroup of the
// uid), or a job of any principal.
struct BudgetTarget {
  std::optional<uint32_t> uid;
  std::string cgroup;
  std::string job;
};

// The origin of a limit: the configuration, or an administrator (*live*).
struct SetBy {
  bool live = false;
  std::string who;  // the name that the caller gave; may be empty
  absl::Time at;    // monotonic; set for live limits only
  bool operator==(const SetBy&) const = default;
};

// A limit that is set, even if nothing that it binds holds memory. Without a
// uid and a job, it is the default of every user, or of every job.
struct LimitLine {
  enum class Of { kEveryUser, kUser, kEveryJob, kJob };
  Of of = Of::kEveryUser;
  BudgetTarget target;
  Limits limits;
  SetBy by;
};

template <>
struct EnumNames<LimitLine::Of> {
  static constexpr std::string_view kNames[] = {"every user", "user",
                                                "every job", "job"};
};

// The memory that a principal or one of its jobs holds, and its limits.
struct BudgetLine {
  Principal principal;
  std::string job;  // empty: the line counts the whole principal
  Bytes gpu_used, host_used;
  Limits limits;
};

class Budgets {
 public:
  struct Given {
    Limits limits;
    SetBy by;
    bool operator==(const Given&) const = default;
  };
  // Limits that are set. Usage is not included, because the ledger saves it.
  struct Saved {
    std::map<std::string, Given> named_jobs;
    std::map<uint32_t, Given> uids;
    std::map<Principal, Given> principals;
    bool operator==(const Saved&) const = default;
  };

  Budgets(Limits principal_default, Limits job_default,
          std::map<std::string, Limits> named_jobs);

  // Returns OK if the job may be charged `size` more. ResourceExhausted names
  // the request, the use, the limit, and how to raise it.
  absl::Status Admit(const JobKey& job, PoolKind kind, Bytes size) const {
    return Check(job, kind, size, /*used=*/true);
  }
  // As Admit, but as if the job and its principal held nothing.
  absl::Status MayEver(const JobKey& job, PoolKind kind, Bytes size) const {
    return Check(job, kind, size, /*used=*/false);
  }
  void Charge(const JobKey& job, PoolKind kind, Bytes size);
  void Refund(const JobKey& job, PoolKind kind, Bytes size);

  // FailedPrecondition: the target holds more than the new limit already, and
  // memory in use cannot be taken back.
  absl::Status Set(const BudgetTarget& target, const Limits& limits, SetBy by);
  // Returns the limits in force. InvalidArgument: no user and no job is named.
  absl::StatusOr<Limits> Get(const BudgetTarget& target) const;

  // Returns how much more `job` may hold by its own limit and its principal's.
  Bytes Left(const JobKey& job, PoolKind kind) const;
  // Returns how much more the principal's, or the job's, limit alone allows;
  // kUnlimited if it is not set.
  Bytes LeftOfPrincipal(const Principal& principal, PoolKind kind) const;
  Bytes LeftOfJob(const JobKey& job, PoolKind kind) const;
  std::vector<BudgetLine> Lines() const;
  std::vector<LimitLine> SetLimits() const;

  const Saved& Save() const { return set_; }
  void Load(const Saved& saved) { set_ = saved; }
  Saved Live() const;
  // Adds the limits of `live`. REQUIRES: a copy of this object has accepted
  // each of them by Set, or nothing is charged yet.
  void SetLive(const Saved& live);

  void CheckInvariants() const;

 private:
  absl::Status Check(const JobKey& job, PoolKind kind, Bytes size,
                     bool used) const;
  Limits PrincipalLimits(const Principal& principal) const;
  Limits JobLimits(const std::string& job) const;

  const Limits principal_default_;
  const Limits job_default_;
  Saved set_;
  std::map<Principal, Amounts> used_;
  std::map<JobKey, Amounts> used_by_job_;
};

}  // namespace sluice::daemon
