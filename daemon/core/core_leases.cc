// Leases: from the request to the last extent made, and back.
#include <fmt/format.h>

#include "daemon/core/core.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Pool& Core::PoolOf(PoolId id) {
  const auto found = pools_.find(id);
  SLUICE_CHECK(found != pools_.end());
  return found->second;
}

const Pool* Core::FindPool(PoolId id) const {
  const auto found = pools_.find(id);
  return found != pools_.end() ? &found->second : nullptr;
}

absl::Status Core::AdmitLease(const Session& session,
                              const LeaseRequest& lease) const {
  if (!session.is_rank()) {
    return absl::FailedPreconditionError(
        "an observer's session has no leases: attach as a rank");
  }
  if (!FindPool(lease.pool)) {
    return absl::NotFoundError(fmt::format(
        "no {} here: this node has {} GPUs and {} NUMA nodes", Name(lease.pool),
        config_.gpus.size(), config_.hosts.size()));
  }
  if (lease.size <= Bytes(0) ||
      lease.size.count() % config_.granularity.count() != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "a lease of {} bytes is not a positive multiple of the granularity, "
        "{}",
        lease.size.count(), FormatBytes(config_.granularity)));
  }
  return budgets_.Admit(KeyOf(session), lease.pool.kind, lease.size);
}

void Core::Handle(Session& session, RequestId request,
                  const LeaseRequest& asked, absl::Time now, Effects& effects) {
  const Refusal refusal = TakeLease(session, request, asked, now, effects);
  if (refusal.why.ok()) return;
  if (WaitForLease(session, request, asked, refusal, now)) return;
  RefuseLease(session, request, refusal, now, effects);
}

void Core::RefuseLease(Session& session, RequestId request,
                       const Refusal& refusal, absl::Time now,
                       Effects& effects) {
  ++stats_.leases_refused[refusal.by];
  Log(now, EventKind::kRefuse,
      fmt::format("rank {} of job {}: {}", session.hello.rank.value(),
                  session.hello.job, std::string(refusal.why.message())),
      session.peer.principal);
  Answer(session, request, refusal.why, effects);
}

Core::Refusal Core::TakeLease(Session& session, RequestId request,
                              const LeaseRequest& asked, absl::Time now,
                              Effects& effects) {
  if (absl::Status admitted = AdmitLease(session, asked); !admitted.ok()) {
    return {std::move(admitted), RefusedBy::kBudget};
  }
  Pool& pool = PoolOf(asked.pool);
  // A rank's HBM is a hard limit; host memory may be a little more.
  const Bytes most = asked.pool.kind == PoolKind::kGpu
                         ? asked.size
                         : budgets_.Left(KeyOf(session), asked.pool.kind);
  auto taken =
      pool.Take(session.principal, asked.size, most, ExtentId(next_extent_));
  if (!taken.ok()) return {taken.status(), RefusedBy::kPool};

  next_extent_ += taken->make.size();
  const LeaseId id(next_lease_++);
  Lease lease;
  lease.session = session.id;
  lease.request = request;
  lease.pool = asked.pool;
  for (const Slice& slice : taken->slices) lease.size += slice.size;
  lease.making = static_cast<int>(taken->make.size());
  lease.slices = std::move(taken->slices);
  lease.asked_at = now;
  budgets_.Charge(KeyOf(session), asked.pool.kind, lease.size);
  for (ExtentId gone : taken->destroy) effects.push_back(DestroyExtent{gone});
  if (!taken->destroy.empty()) ForgetPrincipals();
  for (const Slice& slice : taken->make) {
    making_[slice.id] = {asked.pool, id};
    effects.push_back(MakeExtent{slice.id, asked.pool, slice.size});
  }
  stats_.extents_destroyed += taken->destroy.size();
  stats_.extents_reused += lease.slices.size() - taken->make.size();
  session.leases.insert(id);
  Lease& kept = leases_.emplace(id, std::move(lease)).first->second;
  if (kept.making == 0) FinishLease(id, kept, now, effects);
  return {};
}

void Core::FinishLease(LeaseId id, Lease& lease, absl::Time now,
                       Effects& effects) {
  Session& session = sessions_.at(lease.session);
  const RequestId request = lease.request;
  if (!lease.failure.ok()) {
    ++stats_.leases_refused[RefusedBy::kDevice];
    const absl::Status why = Annotate(
        lease.failure, fmt::format("{}: {} could not be made", Name(lease.pool),
                                   FormatBytes(lease.size)));
    Log(now, EventKind::kRefuse, std::string(why.message()),
        session.peer.principal);
    EndLease(id, /*quarantine=*/false, session);
    return Answer(session, request, why, effects);
  }
  lease.granted = true;
  Pool& pool = PoolOf(lease.pool);
  for (const Slice& slice : lease.slices) pool.AddHolder(slice.id, session.id);
  ++stats_.leases_granted;
  stats_.lease_seconds.Observe(absl::ToDoubleSeconds(now - lease.asked_at));
  Log(now, EventKind::kLease,
      fmt::format("rank {} of job {}: {} of {} in {} extents (lease {})",
                  session.hello.rank.value(), session.hello.job,
                  FormatBytes(lease.size), Name(lease.pool),
                  lease.slices.size(), id.value()),
      session.peer.principal);
  Answer(session, request, GrantedReply{id, lease.slices}, effects);
}

void Core::EndLease(LeaseId id, bool quarantine, Session& session) {
  const auto found = leases_.find(id);
  SLUICE_CHECK(found != leases_.end());
  const Lease& lease = found->second;
  Pool& pool = PoolOf(lease.pool);
  const bool hold = quarantine && lease.granted;
  for (const Slice& slice : lease.slices) {
    const auto making = making_.find(slice.id);
    if (making != making_.end()) {
      making->second.second = LeaseId();  // returned when it is made
    } else if (hold) {
      pool.Quarantine(slice.id, session.id);
    } else {
      pool.Return(slice.id);
    }
  }
  if (hold) {
    (lease.pool.kind == PoolKind::kGpu ? session.quarantined_gpu
                                       : session.quarantined_host) +=
        lease.size;
  } else {
    budgets_.Refund(KeyOf(session), lease.pool.kind, lease.size);
  }
  session.leases.erase(id);
  session.history.LeaseEnded(lease.request);
  leases_.erase(found);
}

Effects Core::ExtentMade(ExtentId id, absl::Time now) {
  Effects effects;
  const auto making = making_.find(id);
  SLUICE_CHECK(making != making_.end());
  const auto [pool_id, lease_id] = making->second;
  making_.erase(making);
  ++stats_.extents_made;
  Pool& pool = PoolOf(pool_id);
  pool.Made(id);
  if (lease_id == LeaseId()) {
    pool.Return(id);
  } else if (Lease& lease = leases_.at(lease_id); --lease.making == 0) {
    FinishLease(lease_id, lease, now, effects);
  }
  Settle(now, effects);
  return effects;
}

Effects Core::ExtentFailed(ExtentId id, const absl::Status& why,
                           absl::Time now) {
  Effects effects;
  const auto making = making_.find(id);
  SLUICE_CHECK(making != making_.end());
  const auto [pool_id, lease_id] = making->second;
  making_.erase(making);
  PoolOf(pool_id).Failed(id);
  ForgetPrincipals();  // its principal may have gone meanwhile
  if (lease_id != LeaseId()) {
    Lease& lease = leases_.at(lease_id);
    std::erase_if(lease.slices, [&](const Slice& s) { return s.id == id; });
    if (lease.failure.ok()) lease.failure = why;
    if (--lease.making == 0) FinishLease(lease_id, lease, now, effects);
  }
  Settle(now, effects);
  return effects;
}

void Core::Handle(Session& session, RequestId request, const FreeRequest& asked,
                  absl::Time, Effects& effects) {
  if (!session.leases.contains(asked.lease) ||
      !leases_.at(asked.lease).granted) {
    return Answer(session, request,
                  absl::NotFoundError(fmt::format("no lease {} in this session",
                                                  asked.lease.value())),
                  effects);
  }
  EndLease(asked.lease, /*quarantine=*/false, session);
  Answer(session, request, FreedReply{}, effects);
}

}  // namespace sluice::daemon
