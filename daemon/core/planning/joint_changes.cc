// All jobs planned together: joins, changes of running plans, leaves.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/planning/joint_planning.h"

namespace sluice::daemon {

void JointPlanning::StartTogether(absl::Time now, Effects& effects) {
  const bool due = next_.at <= now;
  if (rounds_.solving_together() || (joining_.empty() && !due)) return;
  next_.at = absl::InfiniteFuture();
  PlanRounds::Round round;
  round.together = true;
  round.asking = std::exchange(joining_, {});
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
  HurryOthers(effects);
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
  // Who gives back first, then who gives back in sum but grows somewhere: two
  // of these may wait for each other, and are told together. Then who grows.
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

// Only who was told gives back, and answers by its deadline.
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

void JointPlanning::LeaveTogether(const JobKey& job, absl::Time now) {
  members_.erase(job);
  held_.erase(job);
  std::erase_if(joining_, [&](const Asking& each) { return each.job == job; });
  if (members_.empty()) {
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
