// The ledger: which session holds which memory, and how much each may have.
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
// What is returned while a process may still reach it *lingers*: it stays
// charged to the job that had it, and no other principal may have it. The
// device is asked which extents are held (AskHolders): at once, then every
// kAskEvery while some are, a few at a time. Where the device does not know,
// the end of all processes that received a descriptor frees it.
//
// Each extent has a descriptor. So their number is limited, of one principal
// and of all, with some held back for attached ranks (ExtentLimits); idle ones
// go when there are too many, with time, and with their principal's last
// process.
//
// Errors: ExtentMade or ExtentFailed for an extent that was not asked for, and
// a session that is not a holder, are bugs (CHECK).
// Thread safety: none needed; one thread (see core.h).
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
#include "daemon/core/pool/held_outside.h"
#include "daemon/core/pool/pool.h"
#include "daemon/core/requests.h"
#include "daemon/core/reservations.h"
#include "daemon/core/state.h"
#include "daemon/core/stats.h"
#include "daemon/quota/allowance.h"
#include "proto/base/table.h"

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
  // Returns whether it had any.
  bool Close(SessionId session, absl::Time now, Effects& effects);
  // Its process is gone: what it had in quarantine lingers.
  void Gone(SessionId session, absl::Time now, Effects& effects);
  // A closed holder with nothing in quarantine joins another session of the
  // same process.
  void Merge(SessionId from, SessionId to, absl::Time now);

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
  std::optional<Decided> ExtentMade(ExtentId id, absl::Time now,
                                    Effects& effects);
  std::optional<Decided> ExtentFailed(ExtentId id, const absl::Status& why,
                                      absl::Time now, Effects& effects);
  // REQUIRES: it is being made.
  PoolId PoolOfMaking(ExtentId id) const { return making_.at(id).pool; }
  // Leases of `pools` that were asked for by `then`, and of which extents are
  // still to be made.
  struct Progress {
    SessionId session;
    RequestId request;
    Bytes made, size;
  };
  std::vector<Progress> Making(const std::set<PoolId>& pools,
                               absl::Time then) const;
  // The request that had asked for it; nullopt: the session has no such lease.
  std::optional<RequestId> Free(SessionId session, LeaseId lease,
                                absl::Time now, Effects& effects);

  // --- what lingers --------------------------------------------------------
  static constexpr absl::Duration kAskEvery = absl::Milliseconds(250);
  static constexpr size_t kAskAtOnce = 256;
  // What the device says of an extent; ignored where that lingers no more.
  // Returns how much host memory of dead processes came back by it.
  Bytes HolderKnown(ExtentId id, Held held, absl::Time now);
  // Asks again, if it is time.
  void AskAgain(absl::Time now, Effects& effects);

  // --- what is idle --------------------------------------------------------
  static constexpr size_t kTrimAtOnce = 256;
  // Destroys what was idle for too long, or is of a principal that has no
  // process any more.
  void Trim(absl::Time now, Effects& effects);

  // Host memory that is idle, and that the next process of its principal finds.
  Bytes IdleHost() const;
  // Destroys so much of it, the oldest first, if there is as much.
  void GiveUpIdleHost(Bytes bytes, Effects& effects);

  // --- what is held outside ------------------------------------------------
  // What counts from now on. Returns the host memory that came back.
  Bytes SetOutside(HeldOutside held);
  const HeldOutside& outside() const { return rest_.outside; }
  // As `held` would have it.
  Bytes OutsideIn(PoolId pool, const HeldOutside& held) const {
    return OutsideOf(held, pool, spare_.at(pool));
  }

  // When AskAgain or Trim has something to do.
  absl::Time NextDeadline() const {
    return std::min(rest_.ask_again_at, NextTrim());
  }

  // --- budgets -------------------------------------------------------------
  Budgets& budgets() { return budgets_; }
  const Budgets& budgets() const { return budgets_; }
  // Principals that have been charged or refunded since the last call.
  std::set<Principal> TakeRecharged() { return std::exchange(recharged_, {}); }

  // --- reservations --------------------------------------------------------
  // FailedPrecondition where it would not be there: `promised` is what others
  // are to get of the pool besides. NotFound: no such pool.
  absl::Status MayReserve(PoolId pool, const Principal& whose, Bytes bytes,
                          Bytes promised) const;
  // InvalidArgument if a pool has less than is reserved of it.
  absl::Status CheckSums(const Reservations& given) const;
  // REQUIRES: MayReserve of what is new, or CheckSums before the first session.
  void SetReservations(Reservations given) { reservations_ = std::move(given); }
  const Reservations& reservations() const { return reservations_; }
  // The free memory of a pool that `from` may not have; null: that at least one
  // principal may not.
  Bytes Withheld(PoolId pool, const Principal* from) const {
    return Withheld(reservations_, pool, from);
  }
  std::vector<ReservationLine> ReservationLines() const;

  // --- leases that wait ----------------------------------------------------
  // Ok, unless it could not be even if all memory were free: what is wrong
  // with the request, or larger than the pool beside what others have
  // reserved, than a limit, or in too many extents.
  absl::Status MayEverFit(const JobKey& job, const LeaseRequest& asked) const;
  // What such a lease lacks, by sums alone; `promised`: of the pool's free
  // memory, to others. nullopt: nothing. REQUIRES: there is such a pool.
  std::optional<Waiter::Lacks> Lacks(const JobKey& job,
                                     const LeaseRequest& asked,
                                     Bytes promised) const;
  // What is left to lease of the reservation that counts for this principal.
  Bytes ReservedFor(PoolId pool, const Principal& whose) const;

  // --- reading -------------------------------------------------------------
  const std::map<PoolId, Pool>& pools() const { return pools_; }
  const Pool* FindPool(PoolId id) const;
  // What `principal` can surely get of a pool in one lease.
  Bytes UsableBy(PoolId pool, const Principal& principal) const;
  // The same for one that never had a lease.
  Bytes UsableByAnyone(PoolId pool) const;
  // What a principal, or a job, may still lease of host memory within its
  // budget; what lingers of its own it may lease again. kUnlimited: no limit.
  Bytes HostLeft(const Principal& principal) const;
  Bytes HostLeft(const JobKey& job) const;
  // Host memory that a job's ranks have leased, of NUMA node `numa` or of all.
  Bytes HostHeld(const JobKey& job, std::optional<uint64_t> numa) const;
  // What a session has leased.
  Bytes Leased(SessionId session, PoolKind kind) const;
  std::set<LeaseId> LeasesOf(SessionId session) const;
  // Or one is being made for it.
  bool HasLease(SessionId id) const { return !LeasesOf(id).empty(); }
  bool IsHolder(SessionId session) const { return holders_.contains(session); }
  // Nothing of a closed session waits for the end of its process.
  bool HoldsNothing(SessionId session) const;
  // Whether there is host memory of sessions that ended before their processes
  // did, or that these left lingering.
  bool IsReturning(const Principal& principal) const;
  // How many principals have a holder or an extent.
  size_t principals() const { return principals_.size(); }
  const ExtentCounts& extent_counts() const { return counts_; }

  LedgerState Save() const;
  // Into a ledger that holds nothing, of the same node.
  void Load(const LedgerState& saved);
  // Its tables, row by row (SavedAs).
  template <typename Each>
  void EachTable(Each each);
  // After Load: asks the device again for what it was asked of when the daemon
  // that saved ended.
  void TakeOver(absl::Time now, Effects& effects);
  // The requests of leases that are not granted yet.
  std::map<SessionId, std::set<RequestId>> Asking() const;
  // Its part of what is in no table.
  void AddLoose(LooseState& loose) const;

  void CheckInvariants() const;

 private:
  absl::Status CheckPool(PoolId pool) const;
  absl::Status CheckAsked(const LeaseRequest& asked) const;
  // What the principals of the reservation hold of the pool.
  Bytes HeldBy(const Reservations& reserved, PoolId pool,
               const Principal& reserver) const;
  Bytes Withheld(const Reservations& reserved, PoolId pool,
                 const Principal* from) const;
  Decided Finish(LeaseId id, absl::Time now, Effects& effects);
  // Gives the slices back: to quarantine where the holder is closed and they
  // were granted, else to the pool. Erases the lease.
  RequestId End(LeaseId id, absl::Time now);
  // The extent was returned by `job`; asks whether it is held, or does so
  // later.
  void Linger(ExtentId id, PoolId pool, const JobKey& job,
              LingeringState::Origin origin);
  // How many extents may be.
  using Idle = std::vector<std::pair<PoolId, ExtentId>>;
  size_t Extents() const;
  size_t Owned(PrincipalId principal) const;
  absl::Status TooMany(const Principal& who, size_t has, size_t more) const;
  size_t HeldBack(PrincipalId from) const;
  // What is to be destroyed besides, so that the parts of a lease do not make
  // too many extents; takes the changes off the allowance of its principal.
  absl::StatusOr<Idle> MakeRoom(const HolderState& holder, PoolId asked,
                                const Pool::Parts& parts, absl::Time now);
  void Destroy(const Idle& idle, Effects& effects);
  absl::Time NextTrim() const;
  // What was returned since, as one question.
  void AskNow(absl::Time now, Effects& effects);
  // What a lease is made of. Its principal pays for these, and no more for what
  // of them lingers.
  struct Chosen {
    absl::StatusOr<Pool::Parts> parts;
    RefusedBy by = RefusedBy::kPool;  // where there are none
  };
  Chosen Choose(const HolderState& holder, const LeaseRequest& asked);
  absl::Status Admit(const JobKey& job, PoolId pool, Bytes size,
                     const Pool::Parts& parts);
  // Takes charges of what lingers off (or on again).
  void ChargeLingering(const std::vector<ExtentId>& extents, bool charged);
  template <typename Mine>
  Bytes LingeringHost(Mine mine) const;
  MakingState TakeMaking(ExtentId id);
  PrincipalId Intern(const Principal& principal);
  // Idle host memory, as far as the heir may have as many extents.
  void GiveIdleHost(PrincipalId from, PrincipalId heir);
  // How long what is idle in a pool is kept, and after the end of the last
  // process of its principal.
  absl::Duration KeptFor(PoolId pool) const;
  absl::Duration OrphansKeptFor(PoolId pool, const Principal& who) const;
  // Forgets those of whom there is neither a holder nor an extent.
  void ForgetPrincipals();
  void EraseHolder(SessionId session, absl::Time now);
  bool HasExtents(PrincipalId principal) const;
  void CheckLeases() const;
  void CheckHolders() const;
  void CheckCharges() const;
  void CheckLingering() const;
  void CheckPrincipals() const;
  void CheckExtents() const;
  void CheckReservations() const;

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
  std::vector<ExtentId> to_ask_;  // within one event only
  std::map<PoolId, Bytes> spare_;
  std::set<PoolId> faulty_;  // of GPUs that cannot be used
  struct KnownPrincipal {
    PrincipalId id;
    int holders = 0;
    int open = 0;  // of these
    // Since when it has no process; InfiniteFuture: it has one.
    absl::Time alone_since = absl::InfiniteFuture();
  };
  Table<Principal, KnownPrincipal> principals_;
  Allowances allowances_;  // for changes of extents
  ExtentCounts counts_;
  LedgerRest rest_;
};

template <typename Each>
void Ledger::EachTable(Each each) {
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
       [](const Principal& who, const KnownPrincipal* known, auto& visit) {
         PrincipalState row;
         if (known) row = {known->id, known->alone_since};
         visit(RowKind::kPrincipal, who, known ? &row : nullptr);
       });
}

}  // namespace sluice::daemon
