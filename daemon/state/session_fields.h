// The numbered fields of sessions: requests, replies and reports; core_fields.h
// has the rules.
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"
#include "daemon/state/memory_fields.h"

namespace sluice::daemon {

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
