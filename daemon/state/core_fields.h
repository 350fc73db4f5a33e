// The fields of policy's saved state (daemon/core/state.h), by number
// (fields.h).
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"

namespace sluice::daemon {

// --- the node ---------------------------------------------------------------
void Fields(auto& ar, Is<Principal> auto& principal) {
  ar(1, principal.uid, principal.cgroup);
}
void Fields(auto& ar, Is<JobKey> auto& job) { ar(1, job.principal, job.name); }
void Fields(auto& ar, Is<PoolId> auto& pool) { ar(1, pool.kind, pool.ordinal); }
void Fields(auto& ar, Is<Amounts> auto& amounts) {
  ar(1, amounts.gpu, amounts.host);
}
void Fields(auto& ar, Is<Peer> auto& peer) {
  ar(1, peer.principal, peer.pid, peer.start_ticks);
}
void Fields(auto& ar, Is<HeldOutside::Told> auto& told) {
  ar(1, told.beside, told.at);
}
void Fields(auto& ar, Is<HeldOutside> auto& outside) {
  ar(1, outside.pools, outside.at, outside.silent, outside.since,
     outside.beside, outside.before_ranks, outside.told);
}

// --- memory -----------------------------------------------------------------
void Fields(auto& ar, Is<Slice> auto& slice) { ar(1, slice.id, slice.size); }
void Fields(auto& ar, Is<Pool::Extent> auto& extent) {
  ar(1, extent.size, extent.state, extent.principal, extent.idle_order,
     extent.kept_since, extent.holders, extent.quarantined_for);
}
void Fields(auto& ar, Is<LeaseState> auto& lease) {
  ar(1, lease.state, lease.session, lease.request, lease.pool, lease.size,
     lease.slices, lease.making, lease.failure, lease.asked_at);
}
// Leaves out the holder's leases, because the row of a lease names its holder.
void Fields(auto& ar, Is<HolderState> auto& holder) {
  ar(1, holder.state, holder.job, holder.principal, holder.quarantined);
}
void Fields(auto& ar, Is<MakingState> auto& making) {
  ar(1, making.pool, making.lease);
}
void Fields(auto& ar, Is<LingeringState> auto& lingering) {
  ar(1, lingering.origin, lingering.answer, lingering.pool, lingering.job);
}
void Fields(auto& ar, Is<PrincipalState> auto& principal) {
  ar(1, principal.id, principal.alone_since);
}
void Fields(auto& ar, Is<Allowances::Bucket> auto& bucket) {
  ar(1, bucket.left, bucket.at);
}

// --- sessions: requests, replies and reports ---------------------------------
void Fields(auto& ar, Is<HelloRequest> auto& hello) {
  ar(1, hello.job, hello.observer, hello.rank, hello.world_size,
     hello.local_ranks, hello.gpu);
  // 7 was a guaranteed rate.
  ar(8, hello.protocol, hello.shown);
}
void Fields(auto& ar, Is<StepTotals> auto& totals) {
  ar(1, totals.reports, totals.h2d, totals.d2h, totals.stall_seconds,
     totals.grant_wait_seconds, totals.tokens, totals.plan_mismatches);
}
void Fields(auto& ar, Is<StepReport> auto& step) {
  ar(1, step.step, step.seconds, step.h2d, step.d2h, step.stall_seconds,
     step.grant_wait_seconds, step.hbm_peak, step.host_peak, step.tokens,
     step.loss, step.plan_mismatches, step.totals);
}
void Fields(auto& ar, Is<LeaseRequest> auto& asked) {
  ar(1, asked.pool, asked.size, asked.wait);
  // 4 was a priority.
}
void Fields(auto& ar, Is<WelcomeReply> auto& welcome) {
  ar(1, welcome.observer, welcome.grant_slot, welcome.gpu);
  // 4 and 5 were a guaranteed rate, and why it was less than requested.
  ar(6, welcome.protocol);
}
void Fields(auto& ar, Is<GrantedReply> auto& granted) {
  ar(1, granted.lease, granted.slices);
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
  ar(1, death.rank, death.reason);
}
void Fields(auto& ar, Is<Session> auto& session) {
  ar(1, session.id, session.peer, session.state, session.connected_at,
     session.hello, session.grant_slot);
  // 7 and 19 were a guaranteed rate, and why it was lowered.
  ar(8, session.had_leases_at_close, session.last_step);
  // 10 and 11 were sums that last_step has instead.
  ar(12, session.hbm_peak, session.copies_reported, session.copies_seen,
     session.copies_counted, session.told_plan, session.deaths_to_tell,
     session.outside);
}

}  // namespace sluice::daemon

// --- profiles and plans ------------------------------------------------------
namespace sluice::plan {

using daemon::Is;

void Fields(auto& ar, Is<GivenFractions> auto& given) {
  ar(1, given.keep, given.swap);
}
void Fields(auto& ar, Is<TokenFractions> auto& fractions) {
  ar(1, fractions.keep, fractions.swap, fractions.recompute);
}
void Fields(auto& ar, Is<LayerKind> auto& kind) {
  ar(1, kind.name, kind.layers, kind.resident_layers,
     kind.forward_layer_seconds, kind.backward_layer_seconds,
     kind.forward_d2h_fixed, kind.forward_h2d_fixed, kind.backward_d2h_fixed,
     kind.backward_h2d_fixed);
}
void Fields(auto& ar, Is<SkeletalClass> auto& skeletal) {
  ar(1, skeletal.name, skeletal.kind, skeletal.bytes_per_layer,
     skeletal.recompute_seconds, skeletal.must_swap, skeletal.traffic_in_fixed,
     skeletal.shared, skeletal.can_keep, skeletal.given, skeletal.why);
}
void Fields(auto& ar, Is<RankProfile> auto& profile) {
  ar(1, profile.job, profile.rank, profile.gpu, profile.numa, profile.kinds);
  // 6 was the segments: saved profiles have none (MemberOf).
  ar(7, profile.classes, profile.host_fixed, profile.host_limit,
     profile.transient_capacity, profile.keep_reserve, profile.alpha,
     profile.settled, profile.limited_by);
}
void Fields(auto& ar, Is<Placement> auto& placement) {
  ar(1, placement.offsets, placement.peak, placement.lower_bound,
     placement.proved_by, placement.method, placement.seconds);
}
void Fields(auto& ar, Is<SegmentPlan> auto& segment) {
  ar(1, segment.name, segment.base, segment.placement);
}
void Fields(auto& ar, Is<ClassPlan> auto& skeletal) {
  ar(1, skeletal.name, skeletal.fractions, skeletal.why, skeletal.kind);
}
void Fields(auto& ar, Is<PlanLimit> auto& limit) {
  ar(1, limit.what, limit.used, limit.capacity, limit.unit, limit.binds,
     limit.one_more_step_seconds, limit.one_more_recompute_seconds);
}
void Fields(auto& ar, Is<RankPlan> auto& rank) {
  ar(1, rank.job, rank.rank, rank.segments, rank.transient_peak, rank.classes,
     rank.alpha, rank.alpha_limited_by, rank.host_bytes);
}
void Fields(auto& ar, Is<NodePlan> auto& plan) {
  ar(1, plan.id, plan.profile_hash, plan.ranks, plan.seconds, plan.infeasible,
     plan.limited_by, plan.limits, plan.units_solved, plan.units_known);
}

}  // namespace sluice::plan

namespace sluice::daemon {

// --- jobs that run by plans, and waiting leases ------------------------------
void Fields(auto& ar, Is<ProfileWithHash> auto& profile) {
  ar(1, profile.profile, profile.hash, profile.units);
}
void Fields(auto& ar, Is<PlanChange> auto& change) {
  ar(1, change.plan, change.since, change.deadline, change.wait, change.open,
     change.refused, change.before);
}
void Fields(auto& ar, Is<Member> auto& member) {
  ar(1, member.state, member.profiles, member.ranks, member.change,
     member.settled, member.links);
}
void Fields(auto& ar, Is<PlanRounds::Kept> auto& kept) {
  ar(1, kept.job, kept.cache_key, kept.plan);
}
void Fields(auto& ar, Is<WaitingLease> auto& lease) {
  ar(1, lease.session, lease.request, lease.asked, lease.since, lease.deadline);
}
void Fields(auto& ar, Is<PlaceInLine> auto& place) {
  // 1 was a priority.
  ar(2, place.number);
}
void Fields(auto& ar, Is<Waiter> auto& waiter) {
  ar(1, waiter.lacks, waiter.session, waiter.request, waiter.asked, waiter.job,
     waiter.since, waiter.deadline, waiter.again, waiter.for_plan);
}
void Fields(auto& ar, Is<NextRound> auto& next) {
  ar(1, next.owed, next.at, next.why, next.whose);
}

// --- the state outside of tables, and rows (RowKind) -------------------------
void Fields(auto& ar, Is<LooseState> auto& loose) {
  ar(1, loose.next_extent, loose.next_lease, loose.next_principal,
     loose.next_round, loose.next_plan, loose.next_idle_order,
     loose.ask_again_at, loose.asked_last, loose.outside, loose.waiting_leases,
     loose.next_joint, loose.last_session, loose.next_place, loose.gpus);
}
void Fields(auto& ar, Is<ExtentRow> auto& row) { ar(1, row.pool, row.extent); }

}  // namespace sluice::daemon
