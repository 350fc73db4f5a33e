// Host leases that running jobs may make room for.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/planning/joint_planning.h"

namespace sluice::daemon {

bool JointPlanning::WaitForLease(const WaitingLease& lease,
                                 const Refusal& refusal) {
  if (!absl::IsResourceExhausted(refusal.why) ||
      refusal.by == RefusedBy::kExtents || refusal.by == RefusedBy::kQueue ||
      lease.asked.pool.kind != PoolKind::kHost) {
    return false;
  }
  const AttachedRank& rank = attached_.at(lease.session);
  const JobKey& job = rank.job;
  if (!MayEverFit(job, lease.asked)) return false;
  // One per session: so they are few, and their sum is no larger than pools.
  if (std::any_of(
          waiting_leases_.begin(), waiting_leases_.end(),
          [&](const auto& each) { return each.session == lease.session; })) {
    return false;
  }
  // What others free goes to their own principal only.
  const bool could_shrink =
      std::any_of(members_.begin(), members_.end(), [&](const auto& each) {
        return each.first != job && each.first.principal == job.principal &&
               HasFreeFractions({each.first, each.second.profiles});
      });
  const bool joins = !members_.contains(job);
  if (!could_shrink || (!joins && !OthersShrink(job))) return false;
  waiting_leases_.push_back(lease);
  const absl::Time now = lease.since;
  journal_.Log(
      now, EventKind::kPlan,
      fmt::format("rank {} of job {} waits for {} of host memory that running "
                  "jobs may give back",
                  rank.rank.value(), job.name, FormatBytes(lease.asked.size)),
      job.principal);
  if (joins) {
    PlanAgain(now + config_.leave_delay, "needs room to calibrate", job);
  }
  return true;
}

// Whether it would, once all other members of its principal had given back
// everything.
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

void JointPlanning::ReleaseLeases(
    absl::Time now, absl::FunctionRef<Refusal(const WaitingLease&)> try_again,
    absl::FunctionRef<void(const WaitingLease&, const Refusal&)> refuse) {
  const bool planned =
      rounds_.solving_together() || next_.at != absl::InfiniteFuture();
  bool late = false;
  std::erase_if(waiting_leases_, [&](const WaitingLease& lease) {
    const Refusal refusal = try_again(lease);
    if (refusal.why.ok()) return true;
    const bool coming =
        planned || OthersShrink(attached_.at(lease.session).job);
    if (coming && now < lease.deadline) return false;
    late |= coming;
    refuse(lease, refusal);
    return true;
  });
  if (late) MarkShrinkersLate();
}

}  // namespace sluice::daemon
