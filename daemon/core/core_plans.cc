// Plans: from the last profile to the plan each rank gets.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "daemon/core/core.h"
#include "proto/base/status.h"

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
    key += fmt::format("{}:{}:{}/", link.name, link.h2d_bytes_per_second,
                       link.d2h_bytes_per_second);
    ranks(link.profiles);
  }
  for (const plan::HostLimit& host : resources.hosts) {
    key += fmt::format("{}:{}/", host.name, host.bytes.count());
    ranks(host.profiles);
  }
  return key;
}

}  // namespace

void Core::Handle(Session& session, RequestId request, const ProfileRequest&,
                  absl::Time, Effects& effects) {
  if (!session.is_rank()) {
    return Answer(session, request,
                  absl::FailedPreconditionError(
                      "an observer's session has no plans: attach as a rank"),
                  effects);
  }
  effects.push_back(ReadProfile{session.id, request});
}

Effects Core::ProfileRead(SessionId id, RequestId request,
                          absl::StatusOr<ProfileWithHash> read,
                          absl::Time now) {
  Effects effects;
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !found->second.is_rank()) return effects;
  Session& session = found->second;
  if (!read.ok()) {
    Answer(session, request, read.status(), effects);
    return effects;
  }
  const plan::RankProfile& profile = *read->profile;
  if (profile.rank != session.hello.rank || profile.gpu != session.hello.gpu) {
    Answer(session, request,
           absl::InvalidArgumentError(fmt::format(
               "the profile is of rank {} on GPU {}, but this session is rank "
               "{} on GPU {}",
               profile.rank.value(), profile.gpu.value(),
               session.hello.rank.value(), session.hello.gpu.value())),
           effects);
    return effects;
  }
  const JobKey job = KeyOf(session);
  const int waiting = rounds_.Submit(job, session.hello.rank, *std::move(read),
                                     session.hello.local_ranks);
  Answer(session, request, SubmittedReply{waiting}, effects);
  if (waiting == 0) PlanFor(rounds_.Take(job), now, effects);
  Settle(now, effects);
  return effects;
}

void Core::PlanFor(Asking asking, absl::Time now, Effects& effects) {
  held_.erase(asking.job);
  if (IsSettled(asking)) return StartAlone(std::move(asking), now, effects);
  // It asks as one that joins, whatever it had.
  members_.erase(asking.job);
  std::erase_if(joining_,
                [&](const Asking& each) { return each.job == asking.job; });
  joining_.push_back(std::move(asking));
  StartTogether(now, effects);
}

void Core::StartAlone(Asking asking, absl::Time now, Effects& effects) {
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

UnitCache::Units Core::KnownUnits(const std::vector<Asking>& asking) {
  std::vector<std::string> keys;
  for (const Asking& each : asking) {
    for (const auto& [rank, read] : each.profiles) {
      keys.insert(keys.end(), read.units.begin(), read.units.end());
    }
  }
  return units_.Find(keys);
}

void Core::StartRound(PlanRounds::Round round, std::vector<Position> positions,
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
    ++stats_.plans[PlanOutcome::kCached];
    return together ? TogetherSolved(std::move(round), cached, now, effects)
                    : AloneSolved(std::move(round), cached, now, effects);
  }
  // The worker has the configured time; policy gives up a little later, so
  // that the worker's own word about it arrives first.
  round.started = now;
  round.deadline = now + config_.plan_time_limit * 1.25 + absl::Seconds(1);
  question.resources = std::move(resources);
  question.time_limit = config_.plan_time_limit;
  question.known = KnownUnits(round.asking);
  question.round = rounds_.Start(std::move(round));
  effects.push_back(std::move(question));
}

Effects Core::PlanSolved(PlanRoundId id, absl::StatusOr<plan::NodePlan> solved,
                         absl::Time now, std::vector<KeyedUnit> units) {
  Effects effects;
  // Also of a round that was given up: solved is solved.
  bool more = false;
  for (KeyedUnit& unit : units) more |= units_.Add(std::move(unit));
  if (more) effects.push_back(SaveUnits{units_.All()});
  auto round = rounds_.Finish(id);
  if (!round) return effects;
  stats_.plan_seconds.Observe(absl::ToDoubleSeconds(now - round->started));
  if (!solved.ok()) {
    RoundFailed(*std::move(round), PlanOutcome::kFailed, solved.status(), now,
                effects);
    Settle(now, effects);
    return effects;
  }
  // Infeasible is an answer, not a fault: each rank gets the plan, whose
  // `infeasible` says what to do. Of several jobs together it is no answer:
  // each is told what holds for itself.
  const bool feasible = solved->infeasible.empty();
  ++stats_.plans[feasible ? PlanOutcome::kSolved : PlanOutcome::kInfeasible];
  stats_.plan_units[UnitOutcome::kSolved] +=
      static_cast<uint64_t>(solved->units_solved);
  stats_.plan_units[UnitOutcome::kKnown] +=
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
  Settle(now, effects);
  return effects;
}

void Core::AloneSolved(PlanRounds::Round round,
                       std::shared_ptr<const plan::NodePlan> plan,
                       absl::Time now, Effects& effects) {
  const Asking& asking = round.asking[0];
  const JobKey& job = asking.job;
  rounds_.Use(job, plan->id);
  LogPlan(job, *plan, now);
  GivePlan(asking, plan->id, effects);
  if (!plan->infeasible.empty()) return;
  const auto member = members_.find(job);
  if (IsSettled(asking)) {
    // All nodes of a run may have agreed on less than this one's plan said.
    if (member != members_.end()) member->second.settled = PlansOf(*plan);
    if (member != members_.end() && !member->second.change) {
      member->second.ranks = member->second.settled;
    }
  } else {
    members_[job] = MemberOf(asking, *plan);
  }
}

void Core::RoundFailed(PlanRounds::Round round, PlanOutcome outcome,
                       const absl::Status& why, absl::Time now,
                       Effects& effects) {
  const std::string reason(why.message());
  if (outcome == PlanOutcome::kFailed) ++stats_.plans[outcome];
  // Its message may name what is another principal's.
  Log(now, EventKind::kPlan,
      round.jobs.size() == 1
          ? fmt::format("job {}: {}", round.jobs[0].name, reason)
          : fmt::format("{} jobs together: {}", round.jobs.size(), reason),
      round.jobs.size() == 1 ? round.jobs[0].principal
                             : Principal{config_.own_uid, ""});
  for (Asking& asking : round.asking) {
    if (round.jobs.size() > 1) {
      // Nobody's running plan is harmed: it has what is free.
      StartAlone(std::move(asking), now, effects);
      continue;
    }
    std::vector<Rank> ranks;
    for (const auto& [rank, read] : asking.profiles) ranks.push_back(rank);
    FailPlan(asking.job, ranks, {reason, ShortageOf(why)}, effects);
  }
}

void Core::LogPlan(const JobKey& job, const plan::NodePlan& plan,
                   absl::Time now) {
  Log(now, EventKind::kPlan,
      plan.infeasible.empty()
          ? fmt::format("job {}: plan {} for {} ranks in {:.3f} s", job.name,
                        plan.id.value(), plan.ranks.size(), plan.seconds)
          : fmt::format("job {}: {}", job.name, plan.infeasible),
      job.principal);
}

void Core::PlanProgressed(PlanRoundId round,
                          const plan::PlanProgress& progress) {
  rounds_.Progressed(round, progress);
}

void Core::UnitsRead(absl::StatusOr<std::vector<KeyedUnit>> units,
                     absl::Time now) {
  const Principal own{config_.own_uid, ""};
  if (!units.ok()) {
    return Log(now, EventKind::kPlan,
               fmt::format("the plan cache is ignored: {}",
                           std::string(units.status().message())),
               own);
  }
  // The file lists the last used first.
  for (auto unit = units->rbegin(); unit != units->rend(); ++unit) {
    units_.Add(std::move(*unit));
  }
  if (units_.size() > 0) {
    Log(now, EventKind::kPlan,
        fmt::format("{} units are planned already, by an earlier daemon",
                    units_.size()),
        own);
  }
}

std::vector<PlanningSnapshot> Core::Planning(const Principal* viewer,
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
  for (const WaitingLease& lease : waiting_leases_) {
    const Session& session = sessions_.at(lease.session);
    PlanningSnapshot* to = add(KeyOf(session), State::kWaiting, 0,
                               static_cast<size_t>(session.hello.local_ranks));
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

void Core::GivePlan(const Asking& asking, PlanId plan, Effects& effects) {
  for (const Session* session : RanksOf(asking.job)) {
    if (!asking.profiles.contains(session->hello.rank)) continue;
    effects.push_back(SendNotice{session->id, PlanReadyNotice{plan}});
  }
}

void Core::FailPlan(const JobKey& job, const std::vector<Rank>& ranks,
                    const PlanFailedNotice& notice, Effects& effects) {
  for (const Session* session : RanksOf(job)) {
    if (std::count(ranks.begin(), ranks.end(), session->hello.rank) == 0) {
      continue;
    }
    effects.push_back(SendNotice{session->id, notice});
  }
}

}  // namespace sluice::daemon
