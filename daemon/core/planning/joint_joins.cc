// Which jobs are planned together, and when: joins, leaves, and running jobs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/planning/joint_planning.h"

namespace sluice::daemon {
namespace {

size_t BuffersOf(const Asking& asking) {
  size_t buffers = 0;
  for (const auto& [rank, read] : asking.profiles) {
    for (const plan::SegmentKind& segment : read.profile->segments) {
      buffers += segment.trace.buffers.size();
    }
  }
  return buffers;
}

}  // namespace

std::vector<Asking> JointPlanning::TakeNextUsersJobs() {
  if (joining_.empty()) return {};
  const Principal user = joining_.front().job.principal;
  std::vector<Asking> taken;
  size_t buffers = 0;
  std::erase_if(joining_, [&](Asking& asking) {
    if (asking.job.principal != user) return false;
    buffers += BuffersOf(asking);
    if (!taken.empty() && buffers > kMostBuffers) return false;
    taken.push_back(std::move(asking));
    return true;
  });
  return taken;
}

void JointPlanning::StartTogether(absl::Time now, Effects& effects) {
  const bool due = next_.at <= now;
  if (rounds_.solving_together() || (joining_.empty() && !due)) return;
  next_.at = absl::InfiniteFuture();
  PlanRounds::Round round;
  round.together = true;
  round.asking = TakeNextUsersJobs();
  std::map<JobKey, const std::map<Rank, ProfileWithHash>*> jobs;
  for (const auto& [job, member] : members_) jobs[job] = &member.profiles;
  for (const Asking& asking : round.asking) {
    // A member may have asked again, and is then among the asking only.
    members_.erase(asking.job);
    held_.erase(asking.job);
    jobs[asking.job] = &asking.profiles;
  }
  if (jobs.empty()) return;
  std::vector<Position> positions;
  for (const auto& [job, profiles] : jobs) {
    round.jobs.push_back(job);
    for (const auto& [rank, read] : *profiles) {
      positions.push_back({job, rank, read.profile});
    }
  }
  plan::NodeResources resources = ResourcesFor(positions);
  StartRound(std::move(round), std::move(positions), std::move(resources), now,
             effects);
  CutOffAtShare(now, effects);
}

void JointPlanning::TogetherSolved(PlanRounds::Round round,
                                   std::shared_ptr<const plan::NodePlan> plan,
                                   absl::Time now, Effects& effects) {
  const std::set<JobKey> changed = WhoChanges(
      members_.rows(), positions_, resources_.hosts, round.jobs, *plan);
  // Only these jobs are told of their parts of the plan.
  std::set<JobKey> told = changed;
  for (const Asking& asking : round.asking) told.insert(asking.job);
  std::map<JobKey, std::shared_ptr<const plan::NodePlan>> parts;
  for (size_t number = 0; number < round.jobs.size(); ++number) {
    const JobKey& job = round.jobs[number];
    if (!told.contains(job)) continue;
    const std::string key = fmt::format("{}{}", round.cache_key, number);
    auto part = rounds_.Cached(key);
    const JobKey* owner = part ? rounds_.Owner(part->id) : nullptr;
    if (owner == nullptr || owner->principal != job.principal) {
      part = rounds_.Keep(job, key,
                          PartOf(*plan, static_cast<int64_t>(number),
                                 positions_, job, resources_));
    }
    // At once: the next one kept may drop one that is not.
    rounds_.Promise(job, part->id);
    parts[job] = std::move(part);
  }
  // Running jobs before the joining ones, which may have to wait for them.
  for (const JobKey& job : changed) {
    const std::string joins =
        round.asking.empty()
            ? WhyReplanned(job)
            : NameFor(round.asking[0].job, &job.principal) + " joins";
    ProposeChange(job, parts.at(job), joins, now);
  }
  for (Asking& asking : round.asking) {
    const auto part = parts.at(asking.job);
    AdmitJoin(std::move(asking), part, now, effects);
  }
  ReleaseHeld(now, effects);
}

void JointPlanning::AdmitJoin(Asking asking,
                              const std::shared_ptr<const plan::NodePlan>& plan,
                              absl::Time now, Effects& effects) {
  const JobKey job = asking.job;
  rounds_.Use(job, plan->id);
  LogPlan(job, *plan, now);
  if (!plan->infeasible.empty()) return GivePlan(asking, plan->id, effects);
  members_.Put(job) = MemberOf(asking, *plan, config_.links);
  if (FitsNow(job)) return GivePlan(asking, plan->id, effects);
  if (Shrinking().empty()) {
    if (!ShrinksLate()) return GivePlan(asking, plan->id, effects);
    members_.erase(job);
    next_.owed = NextRound::Owed::kRoundAfterChanges;
    return StartAlone(std::move(asking), now, effects);
  }
  std::string others;
  for (const JobKey& other : Shrinking()) {
    others += (others.empty() ? "" : ", ") + NameFor(other, &job.principal);
  }
  journal_.Log(
      now, EventKind::kPlan,
      fmt::format("job {}: plan {} waits for host memory of {}, at most {:g} s",
                  job.name, plan->id.value(), others,
                  absl::ToDoubleSeconds(config_.join_wait)),
      job.principal);
  held_[job] = {std::move(asking), plan->id, now, now + config_.join_wait};
}

void JointPlanning::ReleaseHeld(absl::Time now, Effects& effects) {
  std::vector<HeldJoin> free, late;
  std::erase_if(held_, [&](auto& entry) {
    const bool comes =
        !Shrinking().empty() || ledger_.IsReturning(entry.first.principal);
    const bool fits = FitsNow(entry.first);
    if (!fits && comes && now < entry.second.deadline) return false;
    // Where nothing comes, its plan's bytes are an upper bound.
    const bool give = fits || (!comes && !ShrinksLate());
    (give ? free : late).push_back(std::move(entry.second));
    return true;
  });
  AnnounceChanges(now, effects);
  if (!free.empty()) ++demands_changes_;
  for (HeldJoin& join : free) {
    rounds_.Use(join.asking.job, join.plan);
    GivePlan(join.asking, join.plan, effects);
  }
  if (!late.empty()) MarkShrinkersLate();
  for (HeldJoin& join : late) {
    journal_.Log(
        now, EventKind::kPlan,
        fmt::format("job {}: no memory came back within {:g} s; planned with "
                    "what is free",
                    join.asking.job.name,
                    absl::ToDoubleSeconds(config_.join_wait)),
        join.asking.job.principal);
    members_.erase(join.asking.job);
    StartAlone(std::move(join.asking), now, effects);
  }
}

void JointPlanning::LeaveTogether(const JobKey& job, absl::Time now) {
  members_.erase(job);
  held_.erase(job);
  std::erase_if(joining_, [&](const Asking& each) { return each.job == job; });
  if (members_.empty() && !rounds_.solving_together()) {
    next_.at = absl::InfiniteFuture();
    return;
  }
  // Also one without a plan of its own had its part of links and memory.
  PlanAgain(now + config_.leave_delay, "a job left");
}

void JointPlanning::PlanAgain(absl::Time at, std::string why,
                              std::optional<JobKey> whose) {
  next_.at = std::min(next_.at, at);
  next_.why = std::move(why);
  next_.whose = std::move(whose);
}

std::string JointPlanning::WhyReplanned(const JobKey& to) const {
  return next_.whose ? NameFor(*next_.whose, &to.principal) + " " + next_.why
                     : next_.why;
}

bool JointPlanning::FollowLinks(absl::Time now) {
  const PlannedLinks links = PlannedLinksOf(config_.links);
  bool others = false;
  for (const auto& [job, member] : members_) {
    if (member.links == links) continue;
    others = others || member.links.has_value();
    members_.Edit(job).links = links;
  }
  if (others) {
    PlanAgain(now + config_.leave_delay, "links carry other than before");
  }
  return others;
}

void JointPlanning::Settle(absl::Time now, Effects& effects) {
  EndOverdueChanges(now);
  ReleaseHeld(now, effects);
  const bool changing =
      std::any_of(members_.begin(), members_.end(),
                  [](const auto& each) { return each.second.change; });
  if (next_.owed == NextRound::Owed::kRoundAfterChanges && !changing) {
    next_.owed = NextRound::Owed::kNothing;
    PlanAgain(now, "memory came back");
  }
  StartTogether(now, effects);
  if (!rounds_.solving_together()) {
    // With the traces of its profiles, which users are charged for.
    positions_.clear();
    resources_ = {};
  }
}

}  // namespace sluice::daemon
