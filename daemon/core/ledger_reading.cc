// What the ledger says, and whether it adds up.
#include <algorithm>

#include "daemon/core/ledger.h"
#include "proto/base/status.h"

namespace sluice::daemon {

const Pool* Ledger::FindPool(PoolId id) const {
  const auto found = pools_.find(id);
  return found != pools_.end() ? &found->second : nullptr;
}

Bytes Ledger::UsableBy(PoolId pool, const Principal& principal) const {
  const auto known = principals_.find(principal);
  return pools_.at(pool).UsableBy(
      known != principals_.end() ? known->second.id : PrincipalId(),
      Withheld(pool, &principal));
}

Bytes Ledger::UsableByAnyone(PoolId pool) const {
  return pools_.at(pool).UsableBy(PrincipalId(), Withheld(pool, nullptr));
}

Bytes Ledger::HostHeld(const JobKey& job, std::optional<uint64_t> numa) const {
  Bytes held;
  for (const auto& [id, lease] : leases_) {
    if (lease.pool.kind == PoolKind::kHost &&
        numa.value_or(lease.pool.ordinal) == lease.pool.ordinal &&
        holders_.at(lease.session).job == job) {
      held += lease.size;
    }
  }
  return held;
}

Bytes Ledger::Leased(SessionId session, PoolKind kind) const {
  Bytes leased;
  for (LeaseId id : LeasesOf(session)) {
    const LeaseState& lease = leases_.at(id);
    if (lease.pool.kind == kind) leased += lease.size;
  }
  return leased;
}

std::set<LeaseId> Ledger::LeasesOf(SessionId session) const {
  const auto holder = holders_.find(session);
  return holder != holders_.end() ? holder->second.leases : std::set<LeaseId>();
}

bool Ledger::HoldsNothing(SessionId session) const {
  const HolderState& holder = holders_.at(session);
  return holder.leases.empty() && holder.quarantined == Amounts();
}

bool Ledger::IsReturning(const Principal& principal) const {
  const auto holds = [&](const auto& each) {
    return each.second.job.principal == principal &&
           each.second.quarantined.host > Bytes(0);
  };
  const auto lingers = [&](const auto& each) {
    return each.second.origin == LingeringState::Origin::kOrphaned &&
           each.second.pool.kind == PoolKind::kHost &&
           each.second.job.principal == principal;
  };
  return std::any_of(holders_.begin(), holders_.end(), holds) ||
         std::any_of(lingering_.begin(), lingering_.end(), lingers);
}

LedgerState Ledger::Save() const {
  LedgerState saved;
  for (const auto& [id, pool] : pools_) saved.pools[id] = pool.Save();
  saved.budgets = budgets_.Save();
  saved.reservations = reservations_;
  saved.leases = leases_.rows();
  saved.making = making_.rows();
  saved.holders = holders_.rows();
  for (const auto& [principal, known] : principals_) {
    saved.principals[principal] = {known.id, known.alone_since};
  }
  saved.lingering = lingering_.rows();
  saved.ask_again_at = ask_again_at_;
  saved.asked_last = asked_last_;
  saved.outside = outside_;
  saved.allowances = allowances_.Save();
  saved.next_extent = next_extent_;
  saved.next_lease = next_lease_;
  saved.next_principal = next_principal_;
  return saved;
}

void Ledger::Load(const LedgerState& saved) {
  SLUICE_CHECK(holders_.empty() && making_.empty() && principals_.empty());
  for (auto& [id, pool] : pools_) pool.Load(saved.pools.at(id));
  budgets_.Load(saved.budgets);
  reservations_ = saved.reservations;
  leases_.Load(saved.leases);
  making_.Load(saved.making);
  holders_.Load(saved.holders);
  for (const auto& [principal, known] : saved.principals) {
    principals_.Insert(principal,
                       {.id = known.id, .alone_since = known.alone_since});
  }
  for (const auto& [id, holder] : holders_) {
    KnownPrincipal& known = principals_.Edit(holder.job.principal);
    ++known.holders;
    if (holder.state == HolderState::State::kOpen) ++known.open;
    for (const PoolKind kind : {PoolKind::kGpu, PoolKind::kHost}) {
      const Bytes owed = holder.quarantined.of(kind);
      if (owed > Bytes(0)) budgets_.Charge(holder.job, kind, owed);
    }
  }
  for (const auto& [id, lease] : leases_) {
    budgets_.Charge(holders_.at(lease.session).job, lease.pool.kind,
                    lease.size);
  }
  lingering_.Load(saved.lingering);
  for (const auto& [id, each] : lingering_) Recharge({id});
  ask_again_at_ = saved.ask_again_at;
  asked_last_ = saved.asked_last;
  SetOutside(saved.outside);
  allowances_.Load(saved.allowances);
  next_extent_ = saved.next_extent;
  next_lease_ = saved.next_lease;
  next_principal_ = saved.next_principal;
}

void Ledger::TakeOver(absl::Time now, Effects& effects) {
  for (const auto& [id, making] : making_) {
    const Pool& pool = pools_.at(making.pool);
    effects.push_back(
        MakeExtent{id, making.pool, pool.SizeOf(id), pool.OwnerOf(id)});
  }
  // The answers that were on their way are asked for again.
  for (const auto& [id, each] : lingering_) {
    if (each.answer != LingeringState::Answer::kNotYet) continue;
    lingering_.Edit(id).answer = LingeringState::Answer::kHeld;
    ask_again_at_ = now;
  }
}

std::map<SessionId, std::set<RequestId>> Ledger::Asking() const {
  std::map<SessionId, std::set<RequestId>> asking;
  for (const auto& [id, lease] : leases_) {
    if (lease.state == LeaseState::State::kGranted) continue;
    asking[lease.session].insert(lease.request);
  }
  return asking;
}

void Ledger::AddLoose(LooseState& loose) const {
  loose.next_extent = next_extent_;
  loose.next_lease = next_lease_;
  loose.next_principal = next_principal_;
  for (const auto& [id, pool] : pools_) {
    loose.next_idle_order[id] = pool.next_idle_order();
  }
  loose.ask_again_at = ask_again_at_;
  loose.asked_last = asked_last_;
  loose.outside = outside_;
}

void Ledger::CheckInvariants() const {
  for (const auto& [id, pool] : pools_) pool.CheckInvariants();
  budgets_.CheckInvariants();
  CheckLeases();
  CheckHolders();
  CheckCharges();
  CheckPrincipals();
  CheckLingering();
  CheckExtents();
  CheckReservations();
}

// What pools count as leased is the leases, and what is still being made for
// leases that ended.
void Ledger::CheckLeases() const {
  std::map<PoolId, Bytes> by_pool;
  int making = 0;
  for (const auto& [id, lease] : leases_) {
    Bytes sum;
    for (const Slice& slice : lease.slices) sum += slice.size;
    const bool failing = lease.state == LeaseState::State::kFailing;
    SLUICE_CHECK(failing ? sum < lease.size : sum == lease.size);
    SLUICE_CHECK(failing == !lease.failure.ok());
    SLUICE_CHECK((lease.making == 0) ==
                 (lease.state == LeaseState::State::kGranted));
    SLUICE_CHECK(holders_.at(lease.session).leases.contains(id));
    by_pool[lease.pool] += sum;
    making += lease.making;
  }
  int orphans = 0;
  for (const auto& [extent, wanted] : making_) {
    SLUICE_CHECK(!wanted.lease || leases_.contains(*wanted.lease));
    if (!wanted.lease) ++orphans;
  }
  SLUICE_CHECK(making + orphans == static_cast<int>(making_.size()));
  for (const auto& [id, pool] : pools_) {
    SLUICE_CHECK(orphans > 0 ? pool.leased() >= by_pool[id]
                             : pool.leased() == by_pool[id]);
  }
}

// A lease belongs to one holder; a closed one has only quarantined memory, an
// open one none.
void Ledger::CheckHolders() const {
  size_t leases = 0;
  for (const auto& [id, holder] : holders_) {
    leases += holder.leases.size();
    SLUICE_CHECK(holder.state == HolderState::State::kClosed
                     ? holder.leases.empty()
                     : holder.quarantined == Amounts());
  }
  SLUICE_CHECK(leases == leases_.size());
}

void Ledger::CheckPrincipals() const {
  std::map<Principal, int> holders, open;
  for (const auto& [id, holder] : holders_) {
    ++holders[holder.job.principal];
    if (holder.state == HolderState::State::kOpen) ++open[holder.job.principal];
  }
  for (const auto& [principal, known] : principals_) {
    SLUICE_CHECK(known.holders == holders[principal]);
    SLUICE_CHECK(known.open == open[principal]);
    SLUICE_CHECK(known.holders > 0 || HasExtents(known.id));
  }
}

// What pools hold in quarantine is charged to holders; budgets charge what is
// leased, lingers or is in quarantine.
void Ledger::CheckCharges() const {
  Amounts leased, lingering, quarantined, owed, charged;
  for (const auto& [id, lease] : leases_) {
    leased.of(lease.pool.kind) += lease.size;
  }
  for (const auto& [id, pool] : pools_) {
    quarantined.of(id.kind) += pool.quarantined();
    lingering.of(id.kind) += pool.lingering();
  }
  for (const auto& [id, holder] : holders_) {
    owed.gpu += holder.quarantined.gpu;
    owed.host += holder.quarantined.host;
  }
  for (const BudgetLine& line : budgets_.Lines()) {
    if (!line.job.empty()) continue;
    charged.gpu += line.gpu_used;
    charged.host += line.host_used;
  }
  SLUICE_CHECK(owed == quarantined);
  for (const PoolKind kind : {PoolKind::kGpu, PoolKind::kHost}) {
    SLUICE_CHECK(charged.of(kind) ==
                 leased.of(kind) + lingering.of(kind) + quarantined.of(kind));
  }
}

}  // namespace sluice::daemon
