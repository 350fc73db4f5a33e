// Plans: from the last profile to the plan each rank gets.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "daemon/core/planning/joint_planning.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

// Everything a plan depends on.
std::string KeyOfQuestion(const std::vector<std::string>& hashes,
                          const plan::NodeResources& resources) {
  std::string key;
  for (const std::string& hash : hashes) key += hash + "/";
  const auto ranks = [&key](const std::vector<size_t>& profiles) {
    for (size_t i : profiles) key += fmt::format("{},", i);
    key += "/";
  };
  for (const plan::LinkCapacity& link : resources.links) {
    key += fmt::format("{}:{}:{}:{}/", link.name, link.h2d_bytes_per_second,
                       link.d2h_bytes_per_second,
                       link.both_bytes_per_second.value_or(0));
    ranks(link.profiles);
  }
  for (const plan::HostLimit& host : resources.hosts) {
    key += fmt::format("{}:{}/", host.name, host.bytes.count());
    ranks(host.profiles);
  }
  return key;
}

}  // namespace

int JointPlanning::Submit(SessionId session, ProfileWithHash profile) {
  const AttachedRank& rank = attached_.at(session);
  return rounds_.Submit(rank.job, rank.rank, std::move(profile),
                        rank.local_ranks);
}

void JointPlanning::Ask(const JobKey& job, absl::Time now, Effects& effects) {
  PlanFor(rounds_.Take(job), now, effects);
}

void JointPlanning::PlanFor(Asking asking, absl::Time now, Effects& effects) {
  held_.erase(asking.job);
  if (IsSettled(asking)) return StartAlone(std::move(asking), now, effects);
  // A member that asks again joins anew, whatever it had.
  members_.erase(asking.job);
  std::erase_if(joining_,
                [&](const Asking& each) { return each.job == asking.job; });
  joining_.push_back(std::move(asking));
  StartTogether(now, effects);
  CutOffAtShare(now, effects);
}

void JointPlanning::CutOffAtShare(absl::Time now, Effects& effects) {
  for (const auto& [id, round] : rounds_.solving()) {
    if (!round.together) continue;
    // The user of this round has the next one after all others.
    const auto its = std::stable_partition(
        joining_.begin(), joining_.end(),
        [&asking = round.asking](const Asking& waits) {
          return std::ranges::none_of(asking, [&waits](const Asking& each) {
            return each.job.principal == waits.job.principal;
          });
        });
    if (its == joining_.begin()) continue;  // no other user waits
    effects.push_back(HurrySolving{id});
    // Its worker has half a share to write the plan that it may have.
    rounds_.EndBy(id, std::max(round.started + kShare, now + kShare / 2));
  }
}

bool JointPlanning::IsCutOff(const PlanRounds::Round& round) const {
  return round.deadline < round.started + TimeForRound();
}

void JointPlanning::StartAlone(Asking asking, absl::Time now,
                               Effects& effects) {
  std::vector<Position> positions;
  for (const auto& [rank, read] : asking.profiles) {
    positions.push_back({asking.job, rank, read.profile});
  }
  plan::NodeResources resources = ResourcesFor(positions);
  PlanRounds::Round round;
  round.jobs = {asking.job};
  round.asking.push_back(std::move(asking));
  StartRound(std::move(round), std::move(positions), std::move(resources), now,
             effects);
}

UnitCache::Units JointPlanning::KnownUnits(const std::vector<Asking>& asking) {
  std::vector<std::string> keys;
  for (const Asking& each : asking) {
    for (const auto& [rank, read] : each.profiles) {
      keys.insert(keys.end(), read.units.begin(), read.units.end());
    }
  }
  return units_.Find(keys);
}

void JointPlanning::StartRound(PlanRounds::Round round,
                               std::vector<Position> positions,
                               plan::NodeResources resources, absl::Time now,
                               Effects& effects) {
  std::vector<std::string> hashes;
  SolvePlan question;
  for (const Position& position : positions) {
    const int64_t number =
        std::find(round.jobs.begin(), round.jobs.end(), position.job) -
        round.jobs.begin();
    const auto asked = std::find_if(
        round.asking.begin(), round.asking.end(),
        [&](const Asking& each) { return each.job == position.job; });
    const auto& profiles = asked != round.asking.end()
                               ? asked->profiles
                               : members_.at(position.job).profiles;
    hashes.push_back(
        fmt::format("{}:{}", number, profiles.at(position.rank).hash));
    question.profiles.push_back(position.profile);
    question.jobs.push_back(number);
  }
  round.cache_key = KeyOfQuestion(hashes, resources);
  const bool together = round.together;
  if (together) {
    positions_ = std::move(positions);
    resources_ = resources;
  }
  const auto cached = together ? rounds_.CachedTogether(round.cache_key)
                               : rounds_.Cached(round.cache_key);
  if (cached != nullptr) {
    ++journal_.stats.plans[PlanOutcome::kCached];
    return together ? TogetherSolved(std::move(round), cached, now, effects)
                    : AloneSolved(std::move(round), cached, now, effects);
  }
  round.started = now;
  round.deadline = now + TimeForRound();
  question.resources = std::move(resources);
  question.time_limit = config_.plan_time_limit;
  question.known = KnownUnits(round.asking);
  question.who = round.asking.empty() ? round.jobs.front().principal
                                      : round.asking.front().job.principal;
  question.round = rounds_.Start(std::move(round));
  effects.push_back(std::move(question));
}

void JointPlanning::PlanSolved(PlanRoundId id,
                               absl::StatusOr<plan::NodePlan> solved,
                               std::vector<KeyedUnit> units, absl::Time now,
                               Effects& effects) {
  // Also of a round that was given up: solved is solved.
  for (KeyedUnit& unit : units) units_.Add(std::move(unit));
  auto round = rounds_.Finish(id);
  if (!round) return;
  journal_.stats.plan_seconds.Observe(
      absl::ToDoubleSeconds(now - round->started));
  if (!solved.ok()) {
    return RoundFailed(*std::move(round), PlanOutcome::kFailed, solved.status(),
                       now, effects);
  }
  // Infeasible is an answer, not a fault: each rank gets the plan, and its
  // `infeasible` says what to do. For several jobs together it is no answer:
  // each is told what holds for itself.
  const bool feasible = solved->infeasible.empty();
  ++journal_.stats
        .plans[feasible ? PlanOutcome::kSolved : PlanOutcome::kInfeasible];
  journal_.stats.plan_units[UnitOutcome::kSolved] +=
      static_cast<uint64_t>(solved->units_solved);
  journal_.stats.plan_units[UnitOutcome::kKnown] +=
      static_cast<uint64_t>(solved->units_known);
  if (!round->together) {
    const JobKey job = round->jobs[0];
    const auto plan = rounds_.Keep(job, round->cache_key, *std::move(solved));
    AloneSolved(*std::move(round), plan, now, effects);
  } else if (!feasible && round->jobs.size() > 1) {
    RoundFailed(*std::move(round), PlanOutcome::kInfeasible,
                absl::ResourceExhaustedError(solved->infeasible), now, effects);
  } else {
    const auto plan =
        rounds_.KeepTogether(round->cache_key, *std::move(solved));
    TogetherSolved(*std::move(round), plan, now, effects);
  }
}

void JointPlanning::AloneSolved(PlanRounds::Round round,
                                std::shared_ptr<const plan::NodePlan> plan,
                                absl::Time now, Effects& effects) {
  const Asking& asking = round.asking[0];
  const JobKey& job = asking.job;
  rounds_.Use(job, plan->id);
  LogPlan(job, *plan, now);
  GivePlan(asking, plan->id, effects);
  if (!plan->infeasible.empty()) return;
  if (!IsSettled(asking)) {
    members_.Put(job) = MemberOf(asking, *plan, config_.links);
  } else if (Member* member = members_.Find(job)) {
    // All nodes of a run may have agreed on less than this one's plan said.
    member->settled = PlansOf(*plan);
    if (!member->change) member->ranks = member->settled;
  }
}

void JointPlanning::RoundFailed(PlanRounds::Round round, PlanOutcome outcome,
                                const absl::Status& why, absl::Time now,
                                Effects& effects) {
  const bool cut_off = IsCutOff(round);
  // A worker's own words: it computes on what a client sent.
  const std::string reason =
      cut_off && absl::IsDeadlineExceeded(why)
          ? "not planned together with others, because that took longer than "
            "its share while another user's job waits"
          : Printable(std::string(why.message()));
  if (outcome == PlanOutcome::kFailed) ++journal_.stats.plans[outcome];
  // Its message may name what is another principal's.
  journal_.Log(
      now, EventKind::kPlan,
      round.jobs.size() == 1
          ? fmt::format("job {}: {}", round.jobs[0].name, reason)
          : fmt::format("{} jobs together: {}", round.jobs.size(), reason),
      round.jobs.size() == 1 ? round.jobs[0].principal
                             : Principal{config_.own_uid, ""});
  if (cut_off && round.asking.empty()) {
    PlanAgain(now + config_.leave_delay, next_.why);
  }
  for (Asking& asking : round.asking) {
    if (round.jobs.size() > 1 || cut_off) {
      // It gets what is free, so no running plan is harmed.
      StartAlone(std::move(asking), now, effects);
      continue;
    }
    std::vector<Rank> ranks;
    for (const auto& [rank, read] : asking.profiles) ranks.push_back(rank);
    FailPlan(asking.job, ranks, {reason, ShortageOf(why)}, effects);
  }
}

void JointPlanning::LogPlan(const JobKey& job, const plan::NodePlan& plan,
                            absl::Time now) {
  journal_.Log(
      now, EventKind::kPlan,
      plan.infeasible.empty()
          ? fmt::format("job {}: plan {} for {} ranks in {:.3f} s", job.name,
                        plan.id.value(), plan.ranks.size(), plan.seconds)
          : fmt::format("job {}: {}", job.name, plan.infeasible),
      job.principal);
}

void JointPlanning::GivePlan(const Asking& asking, PlanId plan,
                             Effects& effects) const {
  for (SessionId session : RanksOf(asking.job)) {
    if (!asking.profiles.contains(attached_.at(session).rank)) continue;
    effects.push_back(SendNotice{session, PlanReadyNotice{plan}});
  }
}

void JointPlanning::FailPlan(const JobKey& job, const std::vector<Rank>& ranks,
                             const PlanFailedNotice& notice,
                             Effects& effects) const {
  for (SessionId session : RanksOf(job)) {
    const Rank rank = attached_.at(session).rank;
    if (std::count(ranks.begin(), ranks.end(), rank) == 0) continue;
    effects.push_back(SendNotice{session, notice});
  }
}

}  // namespace sluice::daemon
