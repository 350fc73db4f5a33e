// The numbered fields (fields.h) of policy's saved state (core/state.h).
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"

namespace sluice::daemon {

// --- the node ---------------------------------------------------------------
void Fields(auto& ar, Is<Principal> auto& x) { ar(1, x.uid, x.cgroup); }
void Fields(auto& ar, Is<JobKey> auto& x) { ar(1, x.principal, x.name); }
void Fields(auto& ar, Is<PoolId> auto& x) { ar(1, x.kind, x.ordinal); }
void Fields(auto& ar, Is<Amounts> auto& x) { ar(1, x.gpu, x.host); }
void Fields(auto& ar, Is<Peer> auto& x) {
  ar(1, x.principal, x.pid, x.start_ticks);
}
void Fields(auto& ar, Is<HeldOutside::Told> auto& x) { ar(1, x.beside, x.at); }
void Fields(auto& ar, Is<HeldOutside> auto& x) {
  ar(1, x.pools, x.at, x.silent, x.since, x.beside, x.before_ranks, x.told);
}

// --- memory -----------------------------------------------------------------
void Fields(auto& ar, Is<Slice> auto& x) { ar(1, x.id, x.size); }
void Fields(auto& ar, Is<Pool::Extent> auto& x) {
  ar(1, x.size, x.state, x.principal, x.idle_order, x.kept_since, x.holders,
     x.quarantined_for);
}
void Fields(auto& ar, Is<LeaseState> auto& x) {
  ar(1, x.state, x.session, x.request, x.pool, x.size, x.slices, x.making,
     x.failure, x.asked_at);
}
// Leaves out the holder's leases, because the row of a lease names its holder.
void Fields(auto& ar, Is<HolderState> auto& x) {
  ar(1, x.state, x.job, x.principal, x.quarantined);
}
void Fields(auto& ar, Is<MakingState> auto& x) { ar(1, x.pool, x.lease); }
void Fields(auto& ar, Is<LingeringState> auto& x) {
  ar(1, x.origin, x.answer, x.pool, x.job);
}
void Fields(auto& ar, Is<PrincipalState> auto& x) {
  ar(1, x.id, x.alone_since);
}
void Fields(auto& ar, Is<Allowances::Bucket> auto& x) { ar(1, x.left, x.at); }

// --- sessions: requests, replies and reports ---------------------------------
void Fields(auto& ar, Is<HelloRequest> auto& x) {
  ar(1, x.job, x.observer, x.rank, x.world_size, x.local_ranks, x.gpu);
  // Field 7 was a guaranteed rate.
  ar(8, x.protocol, x.shown);
}
void Fields(auto& ar, Is<StepTotals> auto& x) {
  ar(1, x.reports, x.h2d, x.d2h, x.stall_seconds, x.grant_wait_seconds,
     x.tokens, x.plan_mismatches);
}
void Fields(auto& ar, Is<StepReport> auto& x) {
  ar(1, x.step, x.seconds, x.h2d, x.d2h, x.stall_seconds, x.grant_wait_seconds,
     x.hbm_peak, x.host_peak, x.tokens, x.loss, x.plan_mismatches, x.totals);
}
void Fields(auto& ar, Is<LeaseRequest> auto& x) {
  ar(1, x.pool, x.size, x.wait);
  // Field 4 was a priority.
}
void Fields(auto& ar, Is<WelcomeReply> auto& x) {
  ar(1, x.observer, x.grant_slot, x.gpu);
  // Fields 4 and 5 were a guaranteed rate, and why it was less than requested.
  ar(6, x.protocol);
}
void Fields(auto& ar, Is<GrantedReply> auto& x) { ar(1, x.lease, x.slices); }
void Fields(auto&, Is<FreedReply> auto&) {}
void Fields(auto& ar, Is<SubmittedReply> auto& x) { ar(1, x.waiting_for); }
void Fields(auto& ar, Is<NotedReply> auto& x) { ar(1, x.room); }
void Fields(auto& ar, Is<SnapshotReply> auto& x) { ar(1, x.plan); }
void Fields(auto& ar, Is<Session::PeerDeath> auto& x) {
  ar(1, x.rank, x.reason);
}
void Fields(auto& ar, Is<Session> auto& x) {
  ar(1, x.id, x.peer, x.state, x.connected_at, x.hello, x.grant_slot);
  // Fields 7 and 19 were a guaranteed rate, and why it was lowered.
  ar(8, x.had_leases_at_close, x.last_step);
  // Fields 10 and 11 were sums that last_step has now.
  ar(12, x.hbm_peak, x.copies_reported, x.copies_seen, x.copies_counted,
     x.told_plan, x.deaths_to_tell, x.outside);
}

}  // namespace sluice::daemon

// --- profiles and plans ------------------------------------------------------
namespace sluice::plan {

using daemon::Is;

void Fields(auto& ar, Is<GivenFractions> auto& x) { ar(1, x.keep, x.swap); }
void Fields(auto& ar, Is<TokenFractions> auto& x) {
  ar(1, x.keep, x.swap, x.recompute);
}
void Fields(auto& ar, Is<LayerKind> auto& x) {
  ar(1, x.name, x.layers, x.resident_layers, x.forward_layer_seconds,
     x.backward_layer_seconds, x.forward_d2h_fixed, x.forward_h2d_fixed,
     x.backward_d2h_fixed, x.backward_h2d_fixed);
}
void Fields(auto& ar, Is<SkeletalClass> auto& x) {
  ar(1, x.name, x.kind, x.bytes_per_layer, x.recompute_seconds, x.must_swap,
     x.traffic_in_fixed, x.shared, x.can_keep, x.given, x.why);
}
void Fields(auto& ar, Is<RankProfile> auto& x) {
  ar(1, x.job, x.rank, x.gpu, x.numa, x.kinds);
  // Field 6 was the segments: saved profiles have none (MemberOf).
  ar(7, x.classes, x.host_fixed, x.host_limit, x.transient_capacity,
     x.keep_reserve, x.alpha, x.settled, x.limited_by);
}
void Fields(auto& ar, Is<Placement> auto& x) {
  ar(1, x.offsets, x.peak, x.lower_bound, x.proved_by, x.method, x.seconds);
}
void Fields(auto& ar, Is<SegmentPlan> auto& x) {
  ar(1, x.name, x.base, x.placement);
}
void Fields(auto& ar, Is<ClassPlan> auto& x) {
  ar(1, x.name, x.fractions, x.why, x.kind);
}
void Fields(auto& ar, Is<PlanLimit> auto& x) {
  ar(1, x.what, x.used, x.capacity, x.unit, x.binds, x.one_more_step_seconds,
     x.one_more_recompute_seconds);
}
void Fields(auto& ar, Is<RankPlan> auto& x) {
  ar(1, x.job, x.rank, x.segments, x.transient_peak, x.classes, x.alpha,
     x.alpha_limited_by, x.host_bytes);
}
void Fields(auto& ar, Is<NodePlan> auto& x) {
  ar(1, x.id, x.profile_hash, x.ranks, x.seconds, x.infeasible, x.limited_by,
     x.limits, x.units_solved, x.units_known);
}

}  // namespace sluice::plan

namespace sluice::daemon {

// --- jobs that run by plans, and waiting leases ------------------------------
void Fields(auto& ar, Is<ProfileWithHash> auto& x) {
  ar(1, x.profile, x.hash, x.units);
}
void Fields(auto& ar, Is<PlanChange> auto& x) {
  ar(1, x.plan, x.since, x.deadline, x.wait, x.open, x.refused, x.before);
}
void Fields(auto& ar, Is<Member> auto& x) {
  ar(1, x.state, x.profiles, x.ranks, x.change, x.settled, x.links);
}
void Fields(auto& ar, Is<PlanRounds::Kept> auto& x) {
  ar(1, x.job, x.cache_key, x.plan);
}
void Fields(auto& ar, Is<WaitingLease> auto& x) {
  ar(1, x.session, x.request, x.asked, x.since, x.deadline);
}
// Field 1 was a priority.
void Fields(auto& ar, Is<PlaceInLine> auto& x) { ar(2, x.number); }
void Fields(auto& ar, Is<Waiter> auto& x) {
  ar(1, x.lacks, x.session, x.request, x.asked, x.job, x.since, x.deadline,
     x.again, x.for_plan);
}
void Fields(auto& ar, Is<NextRound> auto& x) {
  ar(1, x.owed, x.at, x.why, x.whose);
}

// --- the state outside of tables, and rows (RowKind) -------------------------
void Fields(auto& ar, Is<LooseState> auto& x) {
  ar(1, x.next_extent, x.next_lease, x.next_principal, x.next_round,
     x.next_plan, x.next_idle_order, x.ask_again_at, x.asked_last, x.outside,
     x.waiting_leases, x.next_joint, x.last_session, x.next_place, x.gpus);
}
void Fields(auto& ar, Is<ExtentRow> auto& x) { ar(1, x.pool, x.extent); }

}  // namespace sluice::daemon
