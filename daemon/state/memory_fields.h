// The numbered fields of the node, its memory and its holders; core_fields.h
// has the rules.
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"

namespace sluice::daemon {

// --- the node ---------------------------------------------------------------
void Fields(auto& ar, Is<Principal> auto& principal) {
  ar(1, principal.uid);
  ar(2, principal.cgroup);
}
void Fields(auto& ar, Is<JobKey> auto& job) {
  ar(1, job.principal);
  ar(2, job.name);
}
void Fields(auto& ar, Is<PoolId> auto& pool) {
  ar(1, pool.kind);
  ar(2, pool.ordinal);
}
void Fields(auto& ar, Is<Amounts> auto& amounts) {
  ar(1, amounts.gpu);
  ar(2, amounts.host);
}
void Fields(auto& ar, Is<Peer> auto& peer) {
  ar(1, peer.principal);
  ar(2, peer.pid);
  ar(3, peer.start_ticks);
}
void Fields(auto& ar, Is<HeldOutside::Told> auto& told) {
  ar(1, told.beside);
  ar(2, told.at);
}
void Fields(auto& ar, Is<HeldOutside> auto& outside) {
  ar(1, outside.pools);
  ar(2, outside.at);
  ar(3, outside.silent);
  ar(4, outside.since);
  ar(5, outside.beside);
  ar(6, outside.before_ranks);
  ar(7, outside.told);
}

// --- memory -----------------------------------------------------------------
void Fields(auto& ar, Is<Slice> auto& slice) {
  ar(1, slice.id);
  ar(2, slice.size);
}
void Fields(auto& ar, Is<Pool::Extent> auto& extent) {
  ar(1, extent.size);
  ar(2, extent.state);
  ar(3, extent.principal);
  ar(4, extent.idle_order);
  ar(5, extent.kept_since);
  ar(6, extent.holders);
  ar(7, extent.quarantined_for);
}
void Fields(auto& ar, Is<LeaseState> auto& lease) {
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
// Leaves out the holder's leases, because the row of a lease names its holder.
void Fields(auto& ar, Is<HolderState> auto& holder) {
  ar(1, holder.state);
  ar(2, holder.job);
  ar(3, holder.principal);
  ar(4, holder.quarantined);
}
void Fields(auto& ar, Is<MakingState> auto& making) {
  ar(1, making.pool);
  ar(2, making.lease);
}
void Fields(auto& ar, Is<LingeringState> auto& lingering) {
  ar(1, lingering.origin);
  ar(2, lingering.answer);
  ar(3, lingering.pool);
  ar(4, lingering.job);
}
void Fields(auto& ar, Is<PrincipalState> auto& principal) {
  ar(1, principal.id);
  ar(2, principal.alone_since);
}
void Fields(auto& ar, Is<Allowances::Bucket> auto& bucket) {
  ar(1, bucket.left);
  ar(2, bucket.at);
}

}  // namespace sluice::daemon
