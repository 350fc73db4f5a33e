// The numbered fields of profiles and plans, of the jobs that run by them, and
// of waiting leases; core_fields.h has the rules.
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"
#include "daemon/state/memory_fields.h"
#include "daemon/state/session_fields.h"

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

}  // namespace sluice::daemon
