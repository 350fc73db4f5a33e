// Budgets: how much memory a principal may hold, and inside it each job.
//
// A limit is a sum over the node (all GPUs, or all NUMA nodes). What counts
// is leased and quarantined memory; idle extents kept for a principal do not.
// Limits of a principal or a job set by an administrator win over defaults.
//
// Thread safety: none needed; one thread (see core.h).
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

// What a limit is set for: a principal (cgroup empty: every cgroup of that
// uid), or a job label in every principal.
struct BudgetTarget {
  std::optional<uint32_t> uid;
  std::string cgroup;
  std::string job;
};

// The origin of a limit: the configuration, or an administrator while the
// daemon ran.
struct SetBy {
  bool live = false;
  std::string who;  // as the caller said it; empty: it did not
  absl::Time at;    // monotonic; live only
  bool operator==(const SetBy&) const = default;
};

// A limit that is set, whether or not it is used. Neither uid nor job:
// the default of every user, or of every job.
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

// What one principal, or one job of it, holds, and the limit that binds it.
struct BudgetLine {
  Principal principal;
  std::string job;  // empty: the principal's own
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
  // Limits that are set, beside the defaults. What is used is the ledger's.
  struct Saved {
    std::map<std::string, Given> named_jobs;
    std::map<uint32_t, Given> uids;
    std::map<Principal, Given> principals;
    bool operator==(const Saved&) const = default;
  };

  Budgets(Limits principal_default, Limits job_default,
          std::map<std::string, Limits> named_jobs);

  // ResourceExhausted: asked, used, limit, and how to raise it.
  absl::Status Admit(const JobKey& job, PoolKind kind, Bytes size) const;
  // The same, if it had nothing yet.
  absl::Status MayEver(const JobKey& job, PoolKind kind, Bytes size) const;
  void Charge(const JobKey& job, PoolKind kind, Bytes size);
  void Refund(const JobKey& job, PoolKind kind, Bytes size);

  // FailedPrecondition where someone already holds more than the new limit:
  // memory in use cannot be taken back, so the promise would be broken.
  absl::Status Set(const BudgetTarget& target, const Limits& limits, SetBy by);
  // What holds for it now. InvalidArgument: neither a user nor a job.
  absl::StatusOr<Limits> Get(const BudgetTarget& target) const;

  // What `job` may still get.
  Bytes Left(const JobKey& job, PoolKind kind) const;
  // The same by one limit alone; kUnlimited if there is none.
  Bytes LeftOfPrincipal(const Principal& principal, PoolKind kind) const;
  Bytes LeftOfJob(const JobKey& job, PoolKind kind) const;
  // Every principal and job that holds something.
  std::vector<BudgetLine> Lines() const;
  // Every limit that is set, used or not.
  std::vector<LimitLine> SetLimits() const;

  Saved Save() const { return {named_jobs_, uids_, principals_}; }
  void Load(const Saved& saved);
  // Those that were set live.
  Saved Live() const;
  // Sets these besides those that are set. REQUIRES: Set of them succeeded on a
  // copy, or nothing is charged yet.
  void SetLive(const Saved& live);

  void CheckInvariants() const;

 private:
  // The target to raise so that `principal` may have more.
  std::string FlagsOf(const Principal& principal) const;
  Limits PrincipalLimits(const Principal& principal) const;
  Limits JobLimits(const std::string& job) const;
  Bytes UsedBy(const Principal& principal, PoolKind kind) const;
  Bytes UsedBy(const JobKey& job, PoolKind kind) const;

  const Limits principal_default_;
  const Limits job_default_;
  std::map<std::string, Given> named_jobs_;
  std::map<uint32_t, Given> uids_;
  std::map<Principal, Given> principals_;
  std::map<Principal, Amounts> used_;
  std::map<JobKey, Amounts> used_by_job_;
};

}  // namespace sluice::daemon
