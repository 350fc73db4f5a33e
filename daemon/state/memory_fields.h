// The fields of the node and of its memory: who holds what.
// By number; core_fields.h says the rules.
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"

namespace sluice::daemon {

// --- the node ---------------------------------------------------------------
template <typename Ar>
void Fields(Ar& ar, Is<Principal> auto& principal) {
  ar(1, principal.uid);
  ar(2, principal.cgroup);
}
template <typename Ar>
void Fields(Ar& ar, Is<JobKey> auto& job) {
  ar(1, job.principal);
  ar(2, job.name);
}
template <typename Ar>
void Fields(Ar& ar, Is<PoolId> auto& pool) {
  ar(1, pool.kind);
  ar(2, pool.ordinal);
}
template <typename Ar>
void Fields(Ar& ar, Is<Amounts> auto& amounts) {
  ar(1, amounts.gpu);
  ar(2, amounts.host);
}
template <typename Ar>
void Fields(Ar& ar, Is<Peer> auto& peer) {
  ar(1, peer.principal);
  ar(2, peer.pid);
  ar(3, peer.start_ticks);
}
template <typename Ar>
void Fields(Ar& ar, Is<HeldOutside::Told> auto& told) {
  ar(1, told.beside);
  ar(2, told.at);
}
template <typename Ar>
void Fields(Ar& ar, Is<HeldOutside> auto& outside) {
  ar(1, outside.pools);
  ar(2, outside.at);
  ar(3, outside.silent);
  ar(4, outside.since);
  ar(5, outside.beside);
  ar(6, outside.before_ranks);
  ar(7, outside.told);
}

// --- memory -----------------------------------------------------------------
template <typename Ar>
void Fields(Ar& ar, Is<Slice> auto& slice) {
  ar(1, slice.id);
  ar(2, slice.size);
}
template <typename Ar>
void Fields(Ar& ar, Is<Pool::Extent> auto& extent) {
  ar(1, extent.size);
  ar(2, extent.state);
  ar(3, extent.principal);
  ar(4, extent.idle_order);
  ar(5, extent.kept_since);
  ar(6, extent.holders);
  ar(7, extent.quarantined_for);
}
template <typename Ar>
void Fields(Ar& ar, Is<LeaseState> auto& lease) {
  ar(1, lease.state);
  ar(2, lease.session);
  ar(3, lease.request);
  ar(4, lease.pool);
  ar(5, lease.size);
  ar(6, lease.slices);
  ar(7, lease.making);
  ar(8, lease.failure);
  ar(9, lease.asked_at);
}
// But for its leases, which name it.
template <typename Ar>
void Fields(Ar& ar, Is<HolderState> auto& holder) {
  ar(1, holder.state);
  ar(2, holder.job);
  ar(3, holder.principal);
  ar(4, holder.quarantined);
}
template <typename Ar>
void Fields(Ar& ar, Is<MakingState> auto& making) {
  ar(1, making.pool);
  ar(2, making.lease);
}
template <typename Ar>
void Fields(Ar& ar, Is<LingeringState> auto& lingering) {
  ar(1, lingering.origin);
  ar(2, lingering.answer);
  ar(3, lingering.pool);
  ar(4, lingering.job);
}
template <typename Ar>
void Fields(Ar& ar, Is<PrincipalState> auto& principal) {
  ar(1, principal.id);
  ar(2, principal.alone_since);
}
template <typename Ar>
void Fields(Ar& ar, Is<Allowances::Bucket> auto& bucket) {
  ar(1, bucket.left);
  ar(2, bucket.at);
}

}  // namespace sluice::daemon
