#include "daemon/core/planning/joint_planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "proto/base/status.h"

namespace sluice::daemon {

JointPlanning::JointPlanning(const NodeConfig& config, const Ledger& ledger,
                             const WaitingQueue& line, Journal& journal)
    : config_(config), ledger_(ledger), line_(line), journal_(journal) {}

std::string JointPlanning::NameFor(const JobKey& job, const Principal* viewer) {
  return !viewer || job.principal == *viewer ? "job " + job.name
                                             : "another user's job";
}

std::vector<SessionId> JointPlanning::RanksOf(const JobKey& job) const {
  std::vector<SessionId> ranks;
  for (const auto& [id, rank] : attached_) {
    if (rank.job == job) ranks.push_back(id);
  }
  return ranks;
}

void JointPlanning::RankAttached(SessionId session, AttachedRank rank) {
  attached_[session] = std::move(rank);
  ++demands_changes_;
}

void JointPlanning::RankLeft(SessionId session, absl::Time now,
                             Effects& effects) {
  const AttachedRank left = attached_.at(session);
  AbandonPlans(left, now, effects);
  LeaveTogether(left.job, now);
  attached_.erase(session);
  ++demands_changes_;
  if (RanksOf(left.job).empty()) rounds_.JobEnded(left.job);
}

void JointPlanning::AbandonPlans(const AttachedRank& left, absl::Time,
                                 Effects& effects) {
  const JobKey& job = left.job;
  auto abandoned = rounds_.RankLeft(job, left.rank);
  for (PlanRoundId round : abandoned.solving) {
    effects.push_back(StopSolving{round});
  }
  // A plan that is made but held back is of no more use to its ranks.
  const auto add = [&](const Asking& asking) {
    for (const auto& [rank, read] : asking.profiles) {
      if (rank != left.rank) abandoned.ranks.push_back(rank);
    }
  };
  if (const auto held = held_.find(job); held != held_.end()) {
    add(held->second.asking);
  }
  for (const Asking& asking : joining_) {
    if (asking.job == job) add(asking);
  }
  FailPlan(job, abandoned.ranks,
           {.reason = fmt::format("rank {} of job {} left before the plan was "
                                  "made",
                                  left.rank.value(), job.name),
            .peer_left = true},
           effects);
  joining_.insert(joining_.begin(),
                  std::make_move_iterator(abandoned.again.begin()),
                  std::make_move_iterator(abandoned.again.end()));
}

void JointPlanning::StepReported(SessionId session) {
  const JobKey& job = attached_.at(session).job;
  const auto member = members_.find(job);
  if (member != members_.end() &&
      member->second.state == Member::State::kAcquires) {
    members_.Edit(job).state = Member::State::kTrains;
  }
}

std::map<SessionId, PlanDemand> JointPlanning::Demands() const {
  std::map<SessionId, PlanDemand> demands;
  for (const auto& [session, rank] : attached_) {
    const auto member = members_.find(rank.job);
    if (member == members_.end() || held_.contains(rank.job)) continue;
    const auto& plans = member->second.change ? member->second.change->before
                                              : member->second.ranks;
    const auto profile = member->second.profiles.find(rank.rank);
    const auto plan = plans.find(rank.rank);
    if (profile == member->second.profiles.end() || plan == plans.end()) {
      continue;
    }
    demands[session] = DemandOf(*profile->second.profile, plan->second);
  }
  return demands;
}

void JointPlanning::MemoryCameBack(absl::Time now) {
  if (members_.empty()) return;
  PlanAgain(now + config_.leave_delay, "memory came back");
}

absl::Time JointPlanning::NextDeadline() const {
  absl::Time next = rounds_.NextDeadline();
  // While a question is being solved for all, its answer starts the next.
  if (!rounds_.solving_together()) next = std::min(next, next_.at);
  for (const auto& [job, held] : held_) next = std::min(next, held.deadline);
  for (const auto& [job, member] : members_) {
    if (member.change) next = std::min(next, member.change->deadline);
  }
  return next;
}

absl::Duration JointPlanning::LeaseWait() const {
  return std::min(config_.join_wait, config_.lease_wait);
}

std::shared_ptr<const plan::NodePlan> JointPlanning::FindPlan(
    PlanId id, const Principal* viewer) const {
  const JobKey* owner = rounds_.Owner(id);
  if (!owner || (viewer && owner->principal != *viewer)) return nullptr;
  return rounds_.Find(id);
}

std::vector<PlanSnapshot> JointPlanning::Plans(const Principal* viewer) const {
  std::vector<PlanSnapshot> plans;
  for (const auto& kept : rounds_.kept()) {
    if (viewer && kept.job.principal != *viewer) continue;
    plans.push_back({kept.job.name, kept.job.principal, kept.plan});
  }
  return plans;
}

std::vector<PlanningSnapshot> JointPlanning::Planning(const Principal* viewer,
                                                      absl::Time now) const {
  using State = PlanningSnapshot::State;
  std::vector<PlanningSnapshot> all;
  const auto add = [&](const JobKey& job, State state, size_t ranks,
                       size_t wanted) -> PlanningSnapshot* {
    if (viewer && job.principal != *viewer) return nullptr;
    all.push_back({job.name, job.principal, static_cast<int>(ranks),
                   static_cast<int>(wanted), state});
    return &all.back();
  };
  for (const auto& [job, open] : rounds_.collecting()) {
    add(job, State::kCollecting, open.ranks.size(), open.wanted);
  }
  for (const Asking& asking : joining_) {
    add(asking.job, State::kQueued, asking.profiles.size(),
        asking.profiles.size());
  }
  for (const auto& [id, round] : rounds_.solving()) {
    for (const Asking& asking : round.asking) {
      const size_t ranks = asking.profiles.size();
      PlanningSnapshot* to = add(asking.job, State::kSolving, ranks, ranks);
      if (to == nullptr) continue;
      to->elapsed = now - round.started;
      to->left = round.deadline - now;
      to->progress = round.progress;
    }
  }
  for (const auto& [job, held] : held_) {
    const size_t ranks = held.asking.profiles.size();
    PlanningSnapshot* to = add(job, State::kWaiting, ranks, ranks);
    if (to == nullptr) continue;
    to->elapsed = now - held.since;
    to->left = held.deadline - now;
    to->plan = held.plan;
    for (const JobKey& other : Shrinking()) {
      to->waiting_for.push_back(NameFor(other, viewer));
    }
  }
  for (const PlaceInLine& place : line_.for_plans()) {
    const Waiter& lease = line_.waiters().at(place);
    const AttachedRank& rank = attached_.at(lease.session);
    PlanningSnapshot* to = add(rank.job, State::kWaiting, 0,
                               static_cast<size_t>(rank.local_ranks));
    if (to == nullptr) continue;
    to->elapsed = now - lease.since;
    to->left = lease.deadline - now;
    for (const JobKey& other : Shrinking()) {
      to->waiting_for.push_back(NameFor(other, viewer));
    }
  }
  for (const auto& [job, member] : members_) {
    if (!member.change) continue;
    const size_t ranks = member.ranks.size();
    PlanningSnapshot* to =
        add(job, State::kChanging, ranks - member.change->open.size(), ranks);
    if (to == nullptr) continue;
    to->elapsed = now - member.change->since;
    to->plan = member.change->plan;
  }
  return all;
}

JointPlanningState JointPlanning::Save() const {
  return {attached_, rounds_.Save(), joining_,   members_.rows(),
          held_,     positions_,     resources_, next_};
}

bool JointPlanning::TakeOver(absl::Time now, Effects& effects) {
  for (const auto& [session, rank] : attached_) {
    const auto member = members_.find(rank.job);
    if (member == members_.end() ||
        member->second.state != Member::State::kChanging ||
        !member->second.change->open.contains(rank.rank)) {
      continue;
    }
    effects.push_back(
        SendNotice{session, PlanChangedNotice{member->second.change->plan}});
  }
  return FollowLinks(now);
}

void JointPlanning::AddLoose(LooseState& loose) const {
  loose.next_round = rounds_.next_round();
  loose.next_plan = rounds_.next_plan();
  loose.next_joint =
      DueWithout(rounds_.solving(), !line_.for_plans().empty(), next_);
}

NextRound JointPlanning::DueWithout(
    const std::map<PlanRoundId, PlanRounds::Round>& solving, bool leases_wait,
    NextRound next) {
  for (const auto& [id, round] : solving) {
    if (!round.together || (!round.asking.empty() && !leases_wait)) continue;
    next.at = std::min(next.at, round.started);
  }
  return next;
}

void JointPlanning::Load(JointPlanningState saved) {
  SLUICE_CHECK(attached_.empty());
  attached_ = std::move(saved.attached);
  rounds_.Load(std::move(saved.rounds));
  joining_ = std::move(saved.joining);
  members_.Load(std::move(saved.members));
  held_ = std::move(saved.held);
  positions_ = std::move(saved.positions);
  resources_ = std::move(saved.resources);
  next_ = std::move(saved.next);
}

// Each job that is planned with or asks is attached.
void JointPlanning::CheckInvariants() const {
  rounds_.CheckInvariants();
  units_.CheckInvariants();
  std::set<JobKey> attached;
  for (const auto& [id, rank] : attached_) attached.insert(rank.job);
  for (const auto& [job, member] : members_) {
    SLUICE_CHECK(attached.contains(job));
    SLUICE_CHECK(member.change.has_value() ==
                 (member.state == Member::State::kToChange ||
                  member.state == Member::State::kChanging));
    SLUICE_CHECK(!member.change || !member.change->open.empty());
  }
  for (const auto& [job, held] : held_) SLUICE_CHECK(members_.contains(job));
  for (const Asking& asking : joining_) {
    SLUICE_CHECK(attached.contains(asking.job));
  }
}

}  // namespace sluice::daemon
