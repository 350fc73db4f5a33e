// The fields of policy's saved state (daemon/core/state.h), by number
// (fields.h).
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

// --- sessions: requests, replies and reports ---------------------------------
void Fields(auto& ar, Is<HelloRequest> auto& hello) {
  ar(1, hello.job);
  ar(2, hello.observer);
  ar(3, hello.rank);
  ar(4, hello.world_size);
  ar(5, hello.local_ranks);
  ar(6, hello.gpu);
  // 7 was a guaranteed rate.
  ar(8, hello.protocol);
  ar(9, hello.shown);
}
void Fields(auto& ar, Is<StepTotals> auto& totals) {
  ar(1, totals.reports);
  ar(2, totals.h2d);
  ar(3, totals.d2h);
  ar(4, totals.stall_seconds);
  ar(5, totals.grant_wait_seconds);
  ar(6, totals.tokens);
  ar(7, totals.plan_mismatches);
}
void Fields(auto& ar, Is<StepReport> auto& step) {
  ar(1, step.step);
  ar(2, step.seconds);
  ar(3, step.h2d);
  ar(4, step.d2h);
  ar(5, step.stall_seconds);
  ar(6, step.grant_wait_seconds);
  ar(7, step.hbm_peak);
  ar(8, step.host_peak);
  ar(9, step.tokens);
  ar(10, step.loss);
  ar(11, step.plan_mismatches);
  ar(12, step.totals);
}
void Fields(auto& ar, Is<LeaseRequest> auto& asked) {
  ar(1, asked.pool);
  ar(2, asked.size);
  ar(3, asked.wait);
  // 4 was a priority.
}
void Fields(auto& ar, Is<WelcomeReply> auto& welcome) {
  ar(1, welcome.observer);
  ar(2, welcome.grant_slot);
  ar(3, welcome.gpu);
  // 4 and 5 were a guaranteed rate, and why it was less than requested.
  ar(6, welcome.protocol);
}
void Fields(auto& ar, Is<GrantedReply> auto& granted) {
  ar(1, granted.lease);
  ar(2, granted.slices);
}
void Fields(auto&, Is<FreedReply> auto&) {}
void Fields(auto& ar, Is<SubmittedReply> auto& submitted) {
  ar(1, submitted.waiting_for);
}
void Fields(auto& ar, Is<NotedReply> auto& noted) { ar(1, noted.room); }
void Fields(auto& ar, Is<SnapshotReply> auto& snapshot) {
  ar(1, snapshot.plan);
}
void Fields(auto& ar, Is<Session::PeerDeath> auto& death) {
  ar(1, death.rank);
  ar(2, death.reason);
}
void Fields(auto& ar, Is<Session> auto& session) {
  ar(1, session.id);
  ar(2, session.peer);
  ar(3, session.state);
  ar(4, session.connected_at);
  ar(5, session.hello);
  ar(6, session.grant_slot);
  // 7 and 19 were a guaranteed rate, and why it was lowered.
  ar(8, session.had_leases_at_close);
  ar(9, session.last_step);
  // 10 and 11 were sums that last_step has instead.
  ar(12, session.hbm_peak);
  ar(13, session.copies_reported);
  ar(14, session.copies_seen);
  ar(15, session.copies_counted);
  ar(16, session.told_plan);
  ar(17, session.deaths_to_tell);
  ar(18, session.outside);
}

}  // namespace sluice::daemon

// --- profiles and plans ------------------------------------------------------
namespace sluice::plan {

using daemon::Is;

void Fields(auto& ar, Is<GivenFractions> auto& given) {
  ar(1, given.keep);
  ar(2, given.swap);
}
void Fields(auto& ar, Is<TokenFractions> auto& fractions) {
  ar(1, fractions.keep);
  ar(2, fractions.swap);
  ar(3, fractions.recompute);
}
void Fields(auto& ar, Is<LayerKind> auto& kind) {
  ar(1, kind.name);
  ar(2, kind.layers);
  ar(3, kind.resident_layers);
  ar(4, kind.forward_layer_seconds);
  ar(5, kind.backward_layer_seconds);
  ar(6, kind.forward_d2h_fixed);
  ar(7, kind.forward_h2d_fixed);
  ar(8, kind.backward_d2h_fixed);
  ar(9, kind.backward_h2d_fixed);
}
void Fields(auto& ar, Is<SkeletalClass> auto& skeletal) {
  ar(1, skeletal.name);
  ar(2, skeletal.kind);
  ar(3, skeletal.bytes_per_layer);
  ar(4, skeletal.recompute_seconds);
  ar(5, skeletal.must_swap);
  ar(6, skeletal.traffic_in_fixed);
  ar(7, skeletal.shared);
  ar(8, skeletal.can_keep);
  ar(9, skeletal.given);
  ar(10, skeletal.why);
}
void Fields(auto& ar, Is<RankProfile> auto& profile) {
  ar(1, profile.job);
  ar(2, profile.rank);
  ar(3, profile.gpu);
  ar(4, profile.numa);
  ar(5, profile.kinds);
  // 6 was the segments: saved profiles have none (WithoutTraces).
  ar(7, profile.classes);
  ar(8, profile.host_fixed);
  ar(9, profile.host_limit);
  ar(10, profile.transient_capacity);
  ar(11, profile.keep_reserve);
  ar(12, profile.alpha);
  ar(13, profile.settled);
  ar(14, profile.limited_by);
}
void Fields(auto& ar, Is<Placement> auto& placement) {
  ar(1, placement.offsets);
  ar(2, placement.peak);
  ar(3, placement.lower_bound);
  ar(4, placement.proved_by);
  ar(5, placement.method);
  ar(6, placement.seconds);
}
void Fields(auto& ar, Is<SegmentPlan> auto& segment) {
  ar(1, segment.name);
  ar(2, segment.base);
  ar(3, segment.placement);
}
void Fields(auto& ar, Is<ClassPlan> auto& skeletal) {
  ar(1, skeletal.name);
  ar(2, skeletal.fractions);
  ar(3, skeletal.why);
  ar(4, skeletal.kind);
}
void Fields(auto& ar, Is<PlanLimit> auto& limit) {
  ar(1, limit.what);
  ar(2, limit.used);
  ar(3, limit.capacity);
  ar(4, limit.unit);
  ar(5, limit.binds);
  ar(6, limit.one_more_step_seconds);
  ar(7, limit.one_more_recompute_seconds);
}
void Fields(auto& ar, Is<RankPlan> auto& rank) {
  ar(1, rank.job);
  ar(2, rank.rank);
  ar(3, rank.segments);
  ar(4, rank.transient_peak);
  ar(5, rank.classes);
  ar(6, rank.alpha);
  ar(7, rank.alpha_limited_by);
  ar(8, rank.host_bytes);
}
void Fields(auto& ar, Is<NodePlan> auto& plan) {
  ar(1, plan.id);
  ar(2, plan.profile_hash);
  ar(3, plan.ranks);
  ar(4, plan.seconds);
  ar(5, plan.infeasible);
  ar(6, plan.limited_by);
  ar(7, plan.limits);
  ar(8, plan.units_solved);
  ar(9, plan.units_known);
}

}  // namespace sluice::plan

namespace sluice::daemon {

// --- jobs that run by plans, and waiting leases ------------------------------
void Fields(auto& ar, Is<ProfileWithHash> auto& profile) {
  ar(1, profile.profile);
  ar(2, profile.hash);
  ar(3, profile.units);
}
void Fields(auto& ar, Is<PlanChange> auto& change) {
  ar(1, change.plan);
  ar(2, change.since);
  ar(3, change.deadline);
  ar(4, change.wait);
  ar(5, change.open);
  ar(6, change.refused);
  ar(7, change.before);
}
void Fields(auto& ar, Is<Member> auto& member) {
  ar(1, member.state);
  ar(2, member.profiles);
  ar(3, member.ranks);
  ar(4, member.change);
  ar(5, member.settled);
  ar(6, member.links);
}
void Fields(auto& ar, Is<PlanRounds::Kept> auto& kept) {
  ar(1, kept.job);
  ar(2, kept.cache_key);
  ar(3, kept.plan);
}
void Fields(auto& ar, Is<WaitingLease> auto& lease) {
  ar(1, lease.session);
  ar(2, lease.request);
  ar(3, lease.asked);
  ar(4, lease.since);
  ar(5, lease.deadline);
}
void Fields(auto& ar, Is<PlaceInLine> auto& place) {
  // 1 was a priority.
  ar(2, place.number);
}
void Fields(auto& ar, Is<Waiter> auto& waiter) {
  ar(1, waiter.lacks);
  ar(2, waiter.session);
  ar(3, waiter.request);
  ar(4, waiter.asked);
  ar(5, waiter.job);
  ar(6, waiter.since);
  ar(7, waiter.deadline);
  ar(8, waiter.again);
  ar(9, waiter.for_plan);
}
void Fields(auto& ar, Is<NextRound> auto& next) {
  ar(1, next.owed);
  ar(2, next.at);
  ar(3, next.why);
  ar(4, next.whose);
}

// --- the state outside of tables, and rows (RowKind) -------------------------
void Fields(auto& ar, Is<LooseState> auto& loose) {
  ar(1, loose.next_extent);
  ar(2, loose.next_lease);
  ar(3, loose.next_principal);
  ar(4, loose.next_round);
  ar(5, loose.next_plan);
  ar(6, loose.next_idle_order);
  ar(7, loose.ask_again_at);
  ar(8, loose.asked_last);
  ar(9, loose.outside);
  ar(10, loose.waiting_leases);
  ar(11, loose.next_joint);
  ar(12, loose.last_session);
  ar(13, loose.next_place);
  ar(14, loose.gpus);
}
void Fields(auto& ar, Is<ExtentRow> auto& row) {
  ar(1, row.pool);
  ar(2, row.extent);
}

}  // namespace sluice::daemon
