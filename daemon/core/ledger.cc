#include "daemon/core/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::daemon {

Ledger::Ledger(const NodeConfig& config)
    : granularity_(config.granularity),
      limits_(config.extent_limits),
      budgets_(config.principal_limits, config.job_limits,
               config.named_job_limits),
      allowances_(limits_.changes_per_second,
                  static_cast<double>(limits_.each)) {
  const std::string_view holders = OutsideHolders(config.driver);
  for (const GpuConfig& gpu : config.gpus) {
    const PoolId id{PoolKind::kGpu, gpu.index.value()};
    pools_.emplace(id, Pool(id, gpu.pool, config.extent.gpu, holders));
    spare_[id] = gpu.spare;
    if (!gpu.fault.empty()) faulty_.insert(id);
  }
  SetOutside({});
  for (const HostConfig& host : config.hosts) {
    const PoolId id{PoolKind::kHost, host.numa.value()};
    pools_.emplace(id, Pool(id, host.pool, config.extent.host, holders));
    spare_[id] = host.spare;
  }
}

PrincipalId Ledger::Intern(const Principal& principal) {
  KnownPrincipal* known = principals_.Find(principal);
  if (known == nullptr) {
    known = &principals_.Insert(principal, {PrincipalId(next_principal_++)});
  }
  ++known->holders;
  known->alone_since = absl::InfiniteFuture();
  return known->id;
}

bool Ledger::HasExtents(PrincipalId principal) const {
  return std::any_of(pools_.begin(), pools_.end(), [&](const auto& pool) {
    return pool.second.OwnedBy(principal) > 0;
  });
}

void Ledger::ForgetPrincipals() {
  for (auto each = principals_.begin(); each != principals_.end();) {
    const auto& [principal, known] = *each++;
    if (known.holders == 0 && !HasExtents(known.id)) {
      principals_.erase(principal);
    }
  }
}

void Ledger::EraseHolder(SessionId session, absl::Time now) {
  KnownPrincipal& known = principals_.Edit(holders_.at(session).job.principal);
  holders_.erase(session);
  if (--known.holders > 0) return;
  known.alone_since = now;
  ForgetPrincipals();
}

void Ledger::Open(SessionId session, const JobKey& job) {
  const PrincipalId id = Intern(job.principal);
  holders_.Insert(session, {.job = job, .principal = id});
  ++principals_.Edit(job.principal).open;
  bool inherits = false;
  for (const auto& [who, known] : principals_) {
    if (known.holders > 0 || !Inherits(who, job.principal)) continue;
    GiveIdleHost(known.id, id);
    inherits = true;
  }
  if (inherits) ForgetPrincipals();
}

std::vector<RequestId> Ledger::Close(SessionId session, absl::Time now,
                                     Effects& effects) {
  HolderState& holder = holders_.Edit(session);
  SLUICE_CHECK(holder.state == HolderState::State::kOpen);
  holder.state = HolderState::State::kClosed;
  --principals_.Edit(holder.job.principal).open;
  std::vector<RequestId> ended;
  while (!holder.leases.empty()) {
    ended.push_back(End(*holder.leases.begin(), now));
  }
  AskNow(now, effects);
  return ended;
}

void Ledger::Merge(SessionId from, SessionId to, absl::Time now) {
  SLUICE_CHECK(HoldsNothing(from));
  for (auto& [id, pool] : pools_) pool.TransferHolds(from, to);
  EraseHolder(from, now);
}

void Ledger::Gone(SessionId session, absl::Time now, Effects& effects) {
  const auto found = holders_.find(session);
  if (found == holders_.end()) return;
  const HolderState& holder = found->second;
  SLUICE_CHECK(holder.state == HolderState::State::kClosed);
  for (auto& [id, pool] : pools_) {
    const Pool::Left left = pool.HolderGone(session);
    for (ExtentId extent : left.unquarantined) {
      Linger(extent, id, holder.job, LingeringState::Origin::kOrphaned);
    }
    for (ExtentId extent : left.alone) {
      lingering_.Edit(extent).answer = LingeringState::Answer::kNotYet;
      to_ask_.push_back(extent);
    }
  }
  EraseHolder(session, now);
  AskNow(now, effects);
}

absl::Status Ledger::CheckPool(PoolId pool) const {
  if (FindPool(pool)) return absl::OkStatus();
  size_t gpus = 0;
  for (const auto& [id, each] : pools_) gpus += id.kind == PoolKind::kGpu;
  return absl::NotFoundError(
      fmt::format("no {} here: this node has {} GPUs and {} NUMA nodes",
                  Name(pool), gpus, pools_.size() - gpus));
}

absl::Status Ledger::CheckAsked(const LeaseRequest& asked) const {
  SLUICE_RETURN_IF_ERROR(CheckPool(asked.pool));
  if (asked.size <= Bytes(0) ||
      asked.size.count() % granularity_.count() != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "a lease of {} bytes is not a positive multiple of the granularity, "
        "{}",
        asked.size.count(), FormatBytes(granularity_)));
  }
  return absl::OkStatus();
}

Ledger::Asked Ledger::Lease(SessionId session, RequestId request,
                            const LeaseRequest& asked, absl::Time now,
                            Effects& effects) {
  // Edited once it has something: a refusal is no change.
  const HolderState& holder = holders_.at(session);
  SLUICE_CHECK(holder.state == HolderState::State::kOpen);
  if (absl::Status wrong = CheckAsked(asked); !wrong.ok()) {
    return {{std::move(wrong), RefusedBy::kBudget}, std::nullopt};
  }
  Pool& pool = pools_.at(asked.pool);
  const auto [parts, by] = Choose(holder, asked);
  if (!parts.ok()) return {{parts.status(), by}, std::nullopt};
  auto idle = MakeRoom(holder, asked.pool, *parts, now);
  if (!idle.ok()) {
    Recharge(parts->reuse);
    return {{idle.status(), RefusedBy::kExtents}, std::nullopt};
  }
  for (ExtentId id : parts->reuse) lingering_.erase(id);
  auto taken = pool.Take(holder.principal, *parts, ExtentId(next_extent_));
  next_extent_ += taken.make.size();
  const LeaseId id(next_lease_++);
  LeaseState& lease = leases_.Insert(id);
  lease.session = session;
  lease.request = request;
  lease.pool = asked.pool;
  for (const Slice& slice : taken.slices) lease.size += slice.size;
  lease.making = static_cast<int>(taken.make.size());
  lease.slices = std::move(taken.slices);
  lease.asked_at = now;
  budgets_.Charge(holder.job, asked.pool.kind, lease.size);
  recharged_.insert(holder.job.principal);
  for (ExtentId gone : parts->destroy) effects.push_back(DestroyExtent{gone});
  if (!parts->destroy.empty()) ForgetPrincipals();
  Destroy(*idle, effects);
  for (const Slice& slice : taken.make) {
    making_.Insert(slice.id, {asked.pool, id});
    effects.push_back(
        MakeExtent{slice.id, asked.pool, slice.size, holder.principal});
  }
  counts_.destroyed += parts->destroy.size();
  counts_.reused += lease.slices.size() - taken.make.size();
  holders_.Edit(session).leases.insert(id);
  if (lease.making > 0) return {};
  return {{}, Finish(id, now, effects)};
}

Ledger::Decided Ledger::Finish(LeaseId id, absl::Time now, Effects& effects) {
  LeaseState& lease = leases_.Edit(id);
  SLUICE_CHECK(lease.making == 0);
  Decided decided{id,         lease.session,  lease.request, lease.pool,
                  lease.size, lease.asked_at, lease.slices,  lease.failure};
  if (lease.state == LeaseState::State::kFailing) {
    End(id, now);
    AskNow(now, effects);
    return decided;
  }
  lease.state = LeaseState::State::kGranted;
  Pool& pool = pools_.at(lease.pool);
  for (const Slice& slice : lease.slices) {
    pool.AddHolder(slice.id, lease.session);
  }
  return decided;
}

RequestId Ledger::End(LeaseId id, absl::Time now) {
  const auto found = leases_.find(id);
  SLUICE_CHECK(found != leases_.end());
  const LeaseState& lease = found->second;
  HolderState& holder = holders_.Edit(lease.session);
  Pool& pool = pools_.at(lease.pool);
  const bool hold = holder.state == HolderState::State::kClosed &&
                    lease.state == LeaseState::State::kGranted;
  Bytes refund;
  for (const Slice& slice : lease.slices) {
    if (MakingState* making = making_.Find(slice.id)) {
      making->lease.reset();  // returned when it is made
      refund += slice.size;
    } else if (hold) {
      pool.Quarantine(slice.id, lease.session);
    } else if (pool.Return(slice.id, now)) {
      Linger(slice.id, lease.pool, holder.job, LingeringState::Origin::kFreed);
    } else {
      refund += slice.size;
    }
  }
  // A failing lease was charged for what could not be made, too.
  if (lease.state == LeaseState::State::kFailing) {
    Bytes there;
    for (const Slice& slice : lease.slices) there += slice.size;
    refund += lease.size - there;
  }
  if (hold) holder.quarantined.of(lease.pool.kind) += lease.size;
  if (refund > Bytes(0)) {
    budgets_.Refund(holder.job, lease.pool.kind, refund);
    recharged_.insert(holder.job.principal);
  }
  holder.leases.erase(id);
  const RequestId request = lease.request;
  leases_.erase(found);
  return request;
}

MakingState Ledger::TakeMaking(ExtentId id) {
  const auto found = making_.find(id);
  SLUICE_CHECK(found != making_.end());
  const MakingState making = found->second;
  making_.erase(found);
  return making;
}

std::optional<Ledger::Decided> Ledger::ExtentMade(ExtentId id, absl::Time now,
                                                  Effects& effects) {
  const MakingState making = TakeMaking(id);
  ++counts_.made;
  Pool& pool = pools_.at(making.pool);
  pool.Made(id);
  if (!making.lease) {
    pool.Return(id, now);
    return std::nullopt;
  }
  if (--leases_.Edit(*making.lease).making > 0) return std::nullopt;
  return Finish(*making.lease, now, effects);
}

std::optional<Ledger::Decided> Ledger::ExtentFailed(ExtentId id,
                                                    const absl::Status& why,
                                                    absl::Time now,
                                                    Effects& effects) {
  const MakingState making = TakeMaking(id);
  pools_.at(making.pool).Failed(id);
  ForgetPrincipals();  // its principal may have gone meanwhile
  if (!making.lease) return std::nullopt;
  LeaseState& lease = leases_.Edit(*making.lease);
  std::erase_if(lease.slices, [&](const Slice& s) { return s.id == id; });
  if (lease.state == LeaseState::State::kMaking) lease.failure = why;
  lease.state = LeaseState::State::kFailing;
  if (--lease.making > 0) return std::nullopt;
  return Finish(*making.lease, now, effects);
}

std::vector<Ledger::Progress> Ledger::Making(const std::set<PoolId>& pools,
                                             absl::Time then) const {
  std::map<LeaseId, Progress> found;
  for (const auto& [id, making] : making_) {
    if (!making.lease) continue;
    const LeaseState& lease = leases_.at(*making.lease);
    if (lease.asked_at > then) break;  // and all behind it
    if (!pools.contains(making.pool)) continue;
    Progress& progress =
        found
            .try_emplace(*making.lease, Progress{lease.session, lease.request,
                                                 lease.size, lease.size})
            .first->second;
    progress.made -= pools_.at(making.pool).SizeOf(id);
  }
  std::vector<Progress> all;
  for (const auto& [id, progress] : found) all.push_back(progress);
  return all;
}

std::optional<RequestId> Ledger::Free(SessionId session, LeaseId lease,
                                      absl::Time now, Effects& effects) {
  const auto holder = holders_.find(session);
  if (holder == holders_.end() || !holder->second.leases.contains(lease) ||
      leases_.at(lease).state != LeaseState::State::kGranted) {
    return std::nullopt;
  }
  const RequestId request = End(lease, now);
  AskNow(now, effects);
  return request;
}

}  // namespace sluice::daemon
