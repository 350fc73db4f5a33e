// Changes of running plans: proposed, announced, answered; what they give back.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/planning/joint_planning.h"

namespace sluice::daemon {

void JointPlanning::ProposeChange(
    const JobKey& job, const std::shared_ptr<const plan::NodePlan>& plan,
    const std::string& why, absl::Time now) {
  Member& member = members_.Edit(job);
  std::map<Rank, plan::RankPlan> ranks = PlansOf(*plan);
  if (const auto held = held_.find(job); held != held_.end()) {
    // The job's ranks have not seen the former plan, so this one replaces it.
    held->second.plan = plan->id;
    member.ranks = std::move(ranks);
    return;
  }
  PlanChange change;
  change.plan = plan->id;
  change.since = now;
  if (member.change) change.wait = member.change->wait;
  change.before = member.change ? std::move(member.change->before)
                                : std::move(member.ranks);
  for (SessionId session : RanksOf(job)) {
    change.open.insert(attached_.at(session).rank);
  }
  journal_.Log(
      now, EventKind::kPlan,
      fmt::format("job {}: plan {} for {} ranks at their next step, since {}",
                  job.name, plan->id.value(), ranks.size(), why),
      job.principal);
  member.ranks = std::move(ranks);
  member.change = std::move(change);
  member.state = Member::State::kToChange;
}

void JointPlanning::AnnounceChanges(absl::Time now, Effects& effects) {
  // First the jobs that only give back, then those that give back in sum but
  // grow somewhere: two of these may wait for each other, and are told
  // together. Then the jobs that grow.
  for (const auto chosen : {+[](bool fits, bool) { return fits; },
                            +[](bool, bool shrinks) { return shrinks; },
                            +[](bool, bool) { return true; }}) {
    std::vector<JobKey> next;
    for (const auto& [job, member] : members_) {
      if (member.state != Member::State::kToChange) continue;
      const bool fits = FitsNow(job);
      if (chosen(fits, Shrinks(member)) && (fits || !AwaitsTold(job))) {
        next.push_back(job);
      }
    }
    for (const JobKey& job : next) AnnounceChange(job, now, effects);
  }
}

// Only a job that was told gives back, and it answers by its deadline.
bool JointPlanning::AwaitsTold(const JobKey& job) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& each) {
    const Member& other = each.second;
    return each.first != job && other.state == Member::State::kChanging &&
           (other.change->wait == PlanChange::Wait::kInVain || Shrinks(other));
  });
}

void JointPlanning::AnnounceChange(const JobKey& job, absl::Time now,
                                   Effects& effects) {
  Member& member = members_.Edit(job);
  member.state = Member::State::kChanging;
  member.change->deadline = now + config_.change_wait;
  ++journal_.stats.plan_changes[ChangeOutcome::kSent];
  for (SessionId session : RanksOf(job)) {
    effects.push_back(
        SendNotice{session, PlanChangedNotice{member.change->plan}});
  }
}

bool JointPlanning::Shrinks(const Member& member) const {
  return member.change &&
         HostPromised(member, member.ranks, std::nullopt) <
             HostPromised(member, member.change->before, std::nullopt);
}

std::vector<JobKey> JointPlanning::Shrinking() const {
  std::vector<JobKey> shrinking;
  for (const auto& [job, member] : members_) {
    if (Shrinks(member) && member.change->wait == PlanChange::Wait::kAwaited)
      shrinking.push_back(job);
  }
  return shrinking;
}

bool JointPlanning::OthersShrink(const JobKey& job) const {
  const std::vector<JobKey> shrinking = Shrinking();
  return std::any_of(shrinking.begin(), shrinking.end(),
                     [&](const JobKey& other) {
                       return other != job && other.principal == job.principal;
                     });
}

bool JointPlanning::ShrinksLate() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& each) {
    return each.second.change &&
           each.second.change->wait == PlanChange::Wait::kInVain;
  });
}

void JointPlanning::MarkShrinkersLate() {
  for (const JobKey& job : Shrinking())
    members_.Edit(job).change->wait = PlanChange::Wait::kInVain;
  next_.owed = NextRound::Owed::kRoundAfterChanges;
}

bool JointPlanning::FitsNow(const JobKey& job) const {
  const Member& member = members_.at(job);
  const Principal& principal = job.principal;
  const auto short_of = [&](std::optional<uint64_t> numa) {
    return HostPromised(member, member.ranks, numa) -
           ledger_.HostHeld(job, numa);
  };
  for (const HostConfig& host : config_.hosts) {
    const uint64_t node = host.numa.value();
    const Bytes more = short_of(node);
    if (more > Bytes(0) &&
        more > ledger_.UsableBy({PoolKind::kHost, node}, principal) -
                   HostGrowth(node, nullptr, {job})) {
      return false;
    }
  }
  const Bytes more = short_of(std::nullopt);
  if (more <= Bytes(0)) return true;
  const Bytes left = ledger_.HostLeft(principal);
  return more <= ledger_.HostLeft(job) &&
         more <= left - HostGrowth(std::nullopt, &principal, {job});
}

void JointPlanning::PlanTaken(SessionId session, const PlanTakenRequest& taken,
                              absl::Time now) {
  const AttachedRank& rank = attached_.at(session);
  Member* found = members_.Find(rank.job);
  if (found == nullptr || !found->change) return;
  Member& member = *found;
  PlanChange& change = *member.change;
  if (change.plan != taken.plan) {
    // The answer is to a superseded change. Only the newer one counts; if that
    // is refused, the job runs by this one.
    if (taken.taken && !member.settled.empty()) change.before = member.settled;
    return;
  }
  change.open.erase(rank.rank);
  if (!taken.taken) change.refused.insert(rank.rank);
  if (change.open.empty()) EndChange(rank.job, member, taken.note, now);
}

void JointPlanning::ChangeNotSent(SessionId session, PlanId plan,
                                  absl::Time now) {
  const auto rank = attached_.find(session);
  if (rank == attached_.end()) return;
  const JobKey& job = rank->second.job;
  Member* member = members_.Find(job);
  if (member == nullptr || !member->change || member->change->plan != plan) {
    return;
  }
  PlanChange& change = *member->change;
  change.open.erase(rank->second.rank);
  change.refused.insert(rank->second.rank);
  if (change.open.empty()) {
    EndChange(job, *member, "it could not be sent", now);
  }
}

void JointPlanning::EndOverdueChanges(absl::Time now) {
  for (const auto& [job, each] : members_) {
    if (!each.change || now < each.change->deadline) continue;
    Member& member = members_.Edit(job);
    member.change->refused.merge(member.change->open);
    EndChange(job, member, "no answer", now);
  }
}

void JointPlanning::EndChange(const JobKey& job, Member& member,
                              const std::string& note, absl::Time now) {
  PlanChange& change = *member.change;
  const bool all = change.refused.empty();
  ++journal_.stats
        .plan_changes[all ? ChangeOutcome::kTaken : ChangeOutcome::kRefused];
  journal_.Log(now, EventKind::kPlan,
               fmt::format("job {}: plan {} {} after {:.1f} s: {}", job.name,
                           change.plan.value(), all ? "taken" : "not taken",
                           absl::ToDoubleSeconds(now - change.since), note),
               job.principal);
  if (all) {
    rounds_.Use(job, change.plan);
    if (!member.settled.empty()) member.ranks = member.settled;
  } else {
    member.ranks = std::move(change.before);
    next_.owed =
        NextRound::Owed::kNothing;  // asking again would be refused again
  }
  member.change.reset();
  member.state = Member::State::kTrains;
}

}  // namespace sluice::daemon
