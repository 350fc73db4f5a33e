// The ledger: which session holds which memory, and how much users may have.
//
// A *holder* is the account of a session that may lease.
//
// States of a lease:
//   making   extents are requested from the device
//   failing  one of these could not be made; others are still being made
//   granted  all extents exist, and the reply has their descriptors
//   (ended)  freed, refused, or its session closed
// States of a holder:
//   open     attached: may have leases
//   closed   its session ended, its process lives: has quarantined memory
//   (gone)   its process ended
//
// Returned memory that a process can still reach *lingers* (pool.h): it stays
// charged to its job. README.md has the rules of lingering and idle extents.
//
// CHECKs that a made extent was requested and that a leasing session is open.
// Thread safety: one thread (core.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/effects.h"
#include "daemon/core/node/types.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool/held_outside.h"
#include "daemon/core/pool/pool.h"
#include "daemon/core/state.h"
#include "daemon/core/stats.h"
#include "daemon/quota/allowance.h"
#include "proto/base/find.h"
#include "proto/base/table.h"

namespace sluice::daemon {

// The reason for refusing a lease; `why` is OK if it is not refused.
struct Refusal {
  absl::Status why;
  RefusedBy by = RefusedBy::kBudget;
};

class Ledger {
 public:
  explicit Ledger(const NodeConfig& config);

  // --- holders
  void Open(SessionId session, const JobKey& job);
  // Ends the session's leases; memory that its process may still map is
  // quarantined. Returns whether the session had any leases.
  bool Close(SessionId session, absl::Time now, Effects& effects);
  // The holder's process has ended: its quarantined memory lingers.
  void Gone(SessionId session, absl::Time now, Effects& effects);
  // Merges a closed holder without quarantined memory into another session of
  // the same process.
  void Merge(SessionId from, SessionId to, absl::Time now);

  // --- leases
  // A lease that is granted, or refused with its `failure`.
  struct Decided {
    LeaseId id;
    LeaseState lease;
  };
  struct Asked {
    Refusal refusal;
    std::optional<Decided> decided;  // set if nothing had to be made
  };
  Asked Lease(SessionId session, RequestId request, const LeaseRequest& asked,
              absl::Time now, Effects& effects);
  // The device has made the extent, or could not, as `made` says.
  std::optional<Decided> ExtentMade(ExtentId id, const absl::Status& made,
                                    absl::Time now, Effects& effects);
  PoolId PoolOfMaking(ExtentId id) const { return making_.at(id).pool; }
  // A lease that waits for extents.
  struct Progress {
    SessionId session;
    RequestId request;
    Bytes made, size;
  };
  // Returns the unfinished leases of `pools` that were requested by `then`.
  std::map<LeaseId, Progress> Making(const std::set<PoolId>& pools,
                                     absl::Time then) const;
  // Returns the lease's request; nullopt if there is no such granted lease.
  std::optional<RequestId> Free(SessionId session, LeaseId lease,
                                absl::Time now, Effects& effects);

  // --- what lingers
  static constexpr absl::Duration kAskEvery = absl::Milliseconds(250);
  static constexpr size_t kAskAtOnce = 256;
  // Handles the device's answer about an extent; ignored if the extent no
  // longer lingers. Returns how much host memory of dead processes became free.
  Bytes HolderKnown(ExtentId id, Held held, absl::Time now);
  void AskAgain(absl::Time now, Effects& effects);

  // --- what is idle
  static constexpr size_t kTrimAtOnce = 256;
  // Destroys extents that were idle for too long, or that belong to a principal
  // without processes.
  void Trim(absl::Time now, Effects& effects);
  Bytes IdleHost() const;
  // Destroys at least `bytes` of idle host memory if there is as much, pool by
  // pool and oldest first, at most kTrimAtOnce extents per pool.
  void GiveUpIdleHost(Bytes bytes, Effects& effects);

  // --- what is held outside
  // Returns how much host memory became free.
  Bytes SetOutside(HeldOutside held);
  const HeldOutside& outside() const { return rest_.outside; }
  Bytes OutsideIn(PoolId pool, const HeldOutside& held) const {
    return OutsideOf(held, pool, spare_.at(pool));
  }

  // Returns when AskAgain or Trim has work next.
  absl::Time NextDeadline() const {
    return std::min(rest_.ask_again_at, NextTrim());
  }

  // --- budgets
  Budgets& budgets() { return budgets_; }
  const Budgets& budgets() const { return budgets_; }
  // Returns the principals charged or refunded since the last call.
  std::set<Principal> TakeRecharged() { return std::exchange(recharged_, {}); }

  // --- reservations
  // FailedPrecondition: the memory is not free, or it is a part of `promised`,
  // which plans promise to others. NotFound: no such pool. InvalidArgument:
  // `bytes` is not a multiple of the granularity.
  absl::Status MayReserve(PoolId pool, const Principal& whose, Bytes bytes,
                          Bytes promised) const;
  // InvalidArgument: a pool has less than is reserved of it, or does not exist.
  absl::Status CheckSums(const Reservations& given) const;
  // REQUIRES: MayReserve accepted each new reservation, or, before the first
  // session, CheckSums accepted all.
  void SetReservations(Reservations given) { reservations_ = std::move(given); }
  const Reservations& reservations() const { return reservations_; }
  // Returns how much of a pool is reserved for principals other than `from`
  // (null: for any principal) and not held by them.
  Bytes Withheld(PoolId pool, const Principal* from) const {
    return Withheld(reservations_, pool, from);
  }
  std::vector<ReservationLine> ReservationLines() const;

  // --- leases that wait
  // Returns why the lease could not be granted even if all memory were free:
  // it is invalid, exceeds a limit, or needs memory reserved for others.
  absl::Status MayEverFit(const JobKey& job, const LeaseRequest& asked) const;
  // Returns what the lease lacks; nullopt if nothing. Compares sums only, not
  // sizes of extents. `promised`: memory of the pool that others will get.
  // REQUIRES: the pool exists.
  std::optional<Waiter::Lacks> Lacks(const JobKey& job,
                                     const LeaseRequest& asked,
                                     Bytes promised) const;
  // Returns the unused part of the reservation that applies to this principal.
  Bytes ReservedFor(PoolId pool, const Principal& whose) const;

  // --- reading
  const std::map<PoolId, Pool>& pools() const { return pools_; }
  const Pool* FindPool(PoolId id) const { return FindOrNull(pools_, id); }
  // Returns how much `principal` can certainly get of a pool in one lease.
  Bytes UsableBy(PoolId pool, const Principal& principal) const;
  // Returns how much a principal that never had a lease can certainly get.
  Bytes UsableByAnyone(PoolId pool) const;
  // Returns how much host memory a principal (or a job) may still lease within
  // its budget, including its own lingering memory. kUnlimited: no limit.
  Bytes HostLeft(const Principal& principal) const;
  Bytes HostLeft(const JobKey& job) const;
  // Returns the host memory that a job leases on `numa` (nullopt: on all).
  Bytes HostHeld(const JobKey& job, std::optional<uint64_t> numa) const;
  Bytes Leased(SessionId session, PoolKind kind) const;
  std::set<LeaseId> LeasesOf(SessionId session) const {
    const HolderState* holder = FindOrNull(holders_, session);
    return holder != nullptr ? holder->leases : std::set<LeaseId>();
  }
  // Includes leases that are being made.
  bool HasLease(SessionId id) const { return !LeasesOf(id).empty(); }
  bool IsHolder(SessionId session) const { return holders_.contains(session); }
  // Returns whether a closed session has neither leases nor quarantined memory.
  bool HoldsNothing(SessionId session) const;
  // Returns whether host memory of this principal is quarantined, or was left
  // lingering by ended processes, and so will become free.
  bool IsReturning(const Principal& principal) const;
  const ExtentCounts& extent_counts() const { return counts_; }

  LedgerState Save() const;
  // REQUIRES: an empty ledger of the same node.
  void Load(const LedgerState& saved);
  template <typename Each>
  void EachTable(Each each) {
    for (auto& [id, pool] : pools_) {
      each(pool.rows(),
           [id = id](ExtentId extent, const Pool::Extent* row, auto& visit) {
             const ExtentRow with{id, row ? *row : Pool::Extent{}};
             visit(RowKind::kExtent, extent, row ? &with : nullptr);
           });
    }
    each(leases_, SavedAs{RowKind::kLease});
    each(making_, SavedAs{RowKind::kMaking});
    each(holders_, SavedAs{RowKind::kHolder});
    each(lingering_, SavedAs{RowKind::kLingering});
    each(allowances_.rows(), SavedAs{RowKind::kAllowance});
    each(principals_,
         [](const Principal& who, const PrincipalState* row, auto& visit) {
           visit(RowKind::kPrincipal, who, row);
         });
  }
  // Call after Load: asks the device again what it had not answered.
  void TakeOver(absl::Time now, Effects& effects);
  // Returns the requests of leases that are not granted yet.
  std::map<SessionId, std::set<RequestId>> Asking() const;
  void AddLoose(LooseState& loose) const;

  void CheckInvariants() const;

 private:
  absl::Status CheckPool(PoolId pool) const;
  absl::Status CheckAsked(const LeaseRequest& asked) const;
  // Returns the part of a reservation that its principals do not hold.
  Bytes Unused(const Reservations& reserved, PoolId pool,
               const Principal& reserver, const Reservation& reservation) const;
  Bytes Withheld(const Reservations& reserved, PoolId pool,
                 const Principal* from) const;
  Decided Finish(LeaseId id, absl::Time now, Effects& effects);
  // Erases the lease. Its slices return to the pool, or are quarantined.
  RequestId End(LeaseId id, absl::Time now);
  void Linger(ExtentId id, PoolId pool, const JobKey& job,
              LingeringState::Origin origin);
  using Idle = std::vector<std::pair<PoolId, ExtentId>>;
  size_t Extents() const;
  size_t Owned(PrincipalId principal) const;
  absl::Status TooMany(const Principal& who, size_t has, size_t more) const;
  size_t HeldBack(PrincipalId from) const;
  // Returns idle extents to destroy, so that a lease exceeds no limit of
  // extents. Charges all that are made or destroyed for it to the allowance.
  absl::StatusOr<Idle> MakeRoom(const HolderState& holder, PoolId asked,
                                const Pool::Parts& parts, absl::Time now);
  void Destroy(const Idle& idle, Effects& effects);
  absl::Time NextTrim() const;
  // Asks the device, in one question, about the extents returned in this event.
  void AskNow(absl::Time now, Effects& effects);
  // The parts of a lease that its budgets admit. Lingering parts are refunded
  // already; the caller charges the lease, or those parts again.
  struct Chosen {
    absl::StatusOr<Pool::Parts> parts;
    RefusedBy by = RefusedBy::kPool;  // if there are no parts
  };
  Chosen Choose(const HolderState& holder, const LeaseRequest& asked);
  void ChargeLingering(const std::vector<ExtentId>& extents, bool charged);
  // Returns `of_budget` plus the lingering host memory of the jobs for which
  // `mine` is true.
  template <typename Mine>
  Bytes HostLeft(Bytes of_budget, Mine mine) const;
  // Return how long extents are kept after they became idle, and after their
  // principal's last process ended.
  absl::Duration KeptFor(PoolId pool) const;
  absl::Duration OrphansKeptFor(PoolId pool, const Principal& who) const;
  // Forgets principals that have neither a holder nor an extent.
  void ForgetPrincipals();
  void EraseHolder(SessionId session, absl::Time now);
  void CheckLeases() const;
  void CheckHolders() const;
  void CheckCharges() const;

  const Bytes granularity_;
  const ExtentLimits limits_;
  std::map<PoolId, Pool> pools_;
  Budgets budgets_;
  std::set<Principal> recharged_;
  Reservations reservations_;
  Table<LeaseId, LeaseState> leases_;
  Table<ExtentId, MakingState> making_;
  Table<SessionId, HolderState> holders_;
  Table<ExtentId, LingeringState> lingering_;
  std::vector<ExtentId> to_ask_;  // empty between events
  std::map<PoolId, Bytes> spare_;
  std::set<PoolId> faulty_;  // pools of GPUs that cannot be used
  struct KnownPrincipal : PrincipalState {
    int holders = 0;
    int open = 0;  // number of open holders
  };
  Table<Principal, KnownPrincipal> principals_;
  Allowances allowances_;  // for making and destroying extents
  ExtentCounts counts_;
  LedgerRest rest_;
};

}  // namespace sluice::daemon
