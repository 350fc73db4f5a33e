// The ledger: who holds which memory, and who may have how much.
//
// It owns the pools, the budgets, the leases with the extents that are being
// made for them, and the account of each session that may lease (a *holder*).
// Core asks it and tells it what became of effects; what a lease came to is
// returned (`Decided`), for Core to answer.
//
// States of a lease:
//   making   extents are asked of the device
//   failing  one of these could not be made; the others are still on the way
//   granted  all are there, and their descriptors were sent
//   (ended)  freed, refused, or its session closed
// States of a holder:
//   open     attached: has leases
//   closed   its session ended, its process lives: has what is in quarantine
//   (gone)   its process ended
//
// Errors: ExtentMade or ExtentFailed for an extent that nobody asked for, and
// a session that is not a holder, are bugs (CHECK).
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/effects.h"
#include "daemon/core/pool.h"
#include "daemon/core/requests.h"
#include "daemon/core/state.h"
#include "daemon/core/stats.h"
#include "daemon/core/types.h"

namespace sluice::daemon {

// Why there is no lease; ok: there is.
struct Refusal {
  absl::Status why;
  RefusedBy by = RefusedBy::kBudget;
};

class Ledger {
 public:
  explicit Ledger(const NodeConfig& config);

  // --- holders -------------------------------------------------------------
  void Open(SessionId session, const JobKey& job);
  // Its leases end; what its process may still map goes to quarantine.
  // Returns the requests that had asked for them.
  std::vector<RequestId> Close(SessionId session);
  // A closed holder with nothing in quarantine joins another session of the
  // same process.
  void Merge(SessionId from, SessionId to);
  // Its process is gone. Returns the host memory that came back; 0 also for
  // one that was no holder.
  Bytes Gone(SessionId session);

  // --- leases --------------------------------------------------------------
  // A lease that was asked for is granted, or (`failure`) refused.
  struct Decided {
    LeaseId lease;
    SessionId session;
    RequestId request;
    PoolId pool;
    Bytes size;
    absl::Time asked_at;
    std::vector<Slice> slices;
    absl::Status failure;
  };
  struct Asked {
    Refusal refusal;
    std::optional<Decided> decided;  // at once: nothing had to be made
  };
  Asked Lease(SessionId session, RequestId request, const LeaseRequest& asked,
              absl::Time now, Effects& effects);
  std::optional<Decided> ExtentMade(ExtentId id);
  std::optional<Decided> ExtentFailed(ExtentId id, const absl::Status& why);
  // The request that had asked for it; nullopt: the session has no such lease.
  std::optional<RequestId> Free(SessionId session, LeaseId lease);

  // --- budgets -------------------------------------------------------------
  Budgets& budgets() { return budgets_; }
  const Budgets& budgets() const { return budgets_; }

  // --- reading -------------------------------------------------------------
  const std::map<PoolId, Pool>& pools() const { return pools_; }
  const Pool* FindPool(PoolId id) const;
  // What `principal` can surely get of a pool in one lease.
  Bytes UsableBy(PoolId pool, const Principal& principal) const;
  // The same for one that never had a lease.
  Bytes UsableByAnyone(PoolId pool) const;
  // Host memory that a job's ranks have leased, of NUMA node `numa` or of all.
  Bytes HostHeld(const JobKey& job, std::optional<uint64_t> numa) const;
  // What a session has leased.
  Bytes Leased(SessionId session, PoolKind kind) const;
  std::set<LeaseId> LeasesOf(SessionId session) const;
  bool IsHolder(SessionId session) const { return holders_.contains(session); }
  // Nothing of a closed session waits for the end of its process.
  bool HoldsNothing(SessionId session) const;
  // Host memory of sessions that ended, whose processes have not yet.
  bool IsReturning(const Principal& principal) const;
  // Of whom there is a holder or an extent.
  size_t principals() const { return principals_.size(); }
  const ExtentCounts& extent_counts() const { return counts_; }

  LedgerState Save() const;
  // Into a ledger that holds nothing, of the same node.
  void Load(const LedgerState& saved);

  void CheckInvariants() const;

 private:
  absl::Status Admit(const HolderState& holder,
                     const LeaseRequest& asked) const;
  Decided Finish(LeaseId id);
  // Gives the slices back: to quarantine where the holder is closed and they
  // were granted, else to the pool. Erases the lease.
  RequestId End(LeaseId id);
  MakingState TakeMaking(ExtentId id);
  PrincipalId Intern(const Principal& principal);
  // Forgets those of whom there is neither a holder nor an extent.
  void ForgetPrincipals();
  void EraseHolder(SessionId session);
  bool HasExtents(PrincipalId principal) const;
  void CheckLeases() const;
  void CheckHolders() const;
  void CheckCharges() const;
  void CheckPrincipals() const;

  const Bytes granularity_;
  std::map<PoolId, Pool> pools_;
  Budgets budgets_;
  std::map<LeaseId, LeaseState> leases_;
  std::map<ExtentId, MakingState> making_;
  std::map<SessionId, HolderState> holders_;
  struct KnownPrincipal {
    PrincipalId id;
    int holders = 0;
  };
  std::map<Principal, KnownPrincipal> principals_;
  ExtentCounts counts_;
  uint64_t next_extent_ = 1;
  uint64_t next_lease_ = 1;
  uint64_t next_principal_ = 1;
};

}  // namespace sluice::daemon
