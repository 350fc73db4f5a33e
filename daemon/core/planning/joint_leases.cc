// Host leases that running jobs may make room for.
#include <fmt/format.h>

#include "daemon/core/planning/joint_planning.h"

namespace sluice::daemon {

bool JointPlanning::AwaitRoom(SessionId session, const LeaseRequest& asked,
                              absl::Time now) {
  const auto& [job, rank, gpu, local_ranks] = attached_.at(session);
  if (asked.pool.kind != PoolKind::kHost || !MayEverFit(job, asked)) {
    return false;
  }
  // One per session: so they are few, and their sum is no larger than pools.
  for (const PlaceInLine& place : line_.for_plans()) {
    if (line_.waiters().at(place).session == session) return false;
  }
  // Memory that a job frees goes to its own principal only.
  bool could_shrink = false;
  for (const auto& [other, member] : members_) {
    could_shrink |= other != job && other.principal == job.principal &&
                    HasFreeFractions({other, member.profiles});
  }
  const bool joins = !members_.contains(job);
  if (!could_shrink || (!joins && !OthersShrink(job))) return false;
  journal_.Log(
      now, EventKind::kPlan,
      fmt::format("rank {} of job {} waits for {} of host memory that running "
                  "jobs may give back",
                  rank.value(), job.name, FormatBytes(asked.size)),
      job.principal);
  if (joins) {
    PlanAgain(now + config_.leave_delay, "needs room to calibrate", job);
  }
  return true;
}

// Whether the lease would fit once all other members of its principal had given
// back everything.
bool JointPlanning::MayEverFit(const JobKey& job,
                               const LeaseRequest& asked) const {
  const Bytes left = ledger_.HostLeft(job.principal);
  Bytes here, anywhere;
  for (const auto& [other, member] : members_) {
    if (other == job || other.principal != job.principal) continue;
    here += ledger_.HostHeld(other, asked.pool.ordinal);
    anywhere += ledger_.HostHeld(other, std::nullopt);
  }
  return asked.size <= ledger_.UsableBy(asked.pool, job.principal) + here &&
         asked.size <= ledger_.HostLeft(job) &&
         (left >= Limits::kUnlimited || asked.size <= left + anywhere);
}

bool JointPlanning::MakesRoom(const JobKey& job) const {
  return rounds_.solving_together() || next_.at != absl::InfiniteFuture() ||
         OthersShrink(job);
}

}  // namespace sluice::daemon
