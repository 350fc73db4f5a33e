// Plans: from the last profile to the plan each rank gets.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "daemon/core/core.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Of a direction that is not throttled beside one that is: faster than any
// link, and within what a plan request may name (proto/plan).
constexpr double kOpenBytesPerSecond = 1e12;

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
  profiles_[{job, session.hello.rank}] = {nullptr, read->hash,
                                          std::move(read->units)};
  const int waiting = rounds_.Submit(job, session.hello.rank, read->profile,
                                     session.hello.local_ranks);
  Answer(session, request, SubmittedReply{waiting}, effects);
  if (waiting == 0) StartRound(job, now, effects);
  return effects;
}

plan::NodeResources Core::ResourcesFor(const JobKey& job) const {
  plan::NodeResources resources;
  std::map<std::string, int> on_link;
  std::map<std::string, plan::LinkCapacity> shares;
  std::map<NumaIndex, std::vector<size_t>> on_node;
  std::map<uint64_t, Bytes> job_host_by_node;
  std::map<Rank, const Session*> ranks;  // a round's profiles come so
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    ++on_link[config_.gpus[session.hello.gpu.value()].link];
    if (KeyOf(session) != job) continue;
    ranks[session.hello.rank] = &session;
    for (LeaseId lease_id : session.leases) {
      const Lease& lease = leases_.at(lease_id);
      if (lease.pool.kind != PoolKind::kHost) continue;
      job_host_by_node[lease.pool.ordinal] += lease.size;
    }
  }
  for (size_t at = 0; const auto& [rank, session] : ranks) {
    const GpuConfig& gpu = config_.gpus[session->hello.gpu.value()];
    shares[gpu.link].profiles.push_back(at);
    on_node[gpu.numa].push_back(at++);
  }
  for (auto& [name, share] : shares) {
    share.name = name;
    // The job's part of a link that others use too.
    const double part =
        static_cast<double>(share.profiles.size()) / on_link[name];
    for (const LinkSpeed& link : config_.links) {
      if (link.name != name) continue;
      share.h2d_bytes_per_second = link.h2d_bytes_per_second * part;
      share.d2h_bytes_per_second = link.d2h_bytes_per_second * part;
    }
    const bool h2d_open = share.h2d_bytes_per_second <= 0;
    const bool d2h_open = share.d2h_bytes_per_second <= 0;
    // A link that is not throttled limits nobody; one that is in one
    // direction still limits that one.
    if (h2d_open && d2h_open) continue;
    if (h2d_open) share.h2d_bytes_per_second = kOpenBytesPerSecond;
    if (d2h_open) share.d2h_bytes_per_second = kOpenBytesPerSecond;
    resources.links.push_back(std::move(share));
  }
  // What it may come to hold on each NUMA node: what it has there and what is
  // free, within its budget.
  const Bytes left = budgets_.Left(job.principal, job.name, PoolKind::kHost);
  for (const HostConfig& host : config_.hosts) {
    const Pool& pool = pools_.at({PoolKind::kHost, host.numa.value()});
    const Bytes held = job_host_by_node[host.numa.value()];
    const Bytes more =
        std::min(left, pool.UsableBy(principals_.at(job.principal)));
    resources.hosts.push_back(
        {fmt::format("host of NUMA node {}", host.numa.value()), held + more,
         on_node[host.numa]});
  }
  return resources;
}

std::string Core::PlanKey(const JobKey& job,
                          const plan::NodeResources& resources) const {
  std::string key;
  for (const auto& [rank, profile] : profiles_) {
    if (rank.first == job) key += profile.hash + "/";
  }
  for (const plan::LinkCapacity& link : resources.links) {
    key += fmt::format("{}:{}:{}/", link.name, link.h2d_bytes_per_second,
                       link.d2h_bytes_per_second);
  }
  for (const plan::HostLimit& host : resources.hosts) {
    key += fmt::format("{}:{}/", host.name, host.bytes.count());
  }
  return key;
}

UnitCache::Units Core::KnownUnits(const JobKey& job) {
  std::vector<std::string> keys;
  for (const auto& [rank, profile] : profiles_) {
    if (rank.first != job) continue;
    keys.insert(keys.end(), profile.units.begin(), profile.units.end());
  }
  return units_.Find(keys);
}

void Core::StartRound(const JobKey& job, absl::Time now, Effects& effects) {
  plan::NodeResources resources = ResourcesFor(job);
  const std::string key = PlanKey(job, resources);
  // The worker has the configured time; policy gives up a little later, so
  // that the worker's own word about it arrives first.
  auto started = rounds_.Start(
      job, key, now + config_.plan_time_limit * 1.25 + absl::Seconds(1));
  running_[started.round] = {now, std::nullopt};
  if (const auto cached = rounds_.Cached(key)) {
    const auto finished = rounds_.Finish(started.round);
    running_.erase(started.round);
    ++stats_.plans["cached"];
    rounds_.Use(job, cached->id);
    return GivePlan(job, finished->ranks, *cached, effects);
  }
  effects.push_back(SolvePlan{started.round, std::move(started.profiles),
                              std::move(resources), config_.plan_time_limit,
                              KnownUnits(job)});
}

Effects Core::PlanSolved(PlanRoundId round,
                         absl::StatusOr<plan::NodePlan> solved, absl::Time now,
                         std::vector<KeyedUnit> units) {
  Effects effects;
  // Also of a round that was given up: solved is solved.
  bool more = false;
  for (KeyedUnit& unit : units) more |= units_.Add(std::move(unit));
  if (more) effects.push_back(SaveUnits{units_.All()});
  const auto finished = rounds_.Finish(round);
  if (!finished) return effects;
  const JobKey& job = finished->job;
  stats_.plan_seconds.Observe(
      absl::ToDoubleSeconds(now - running_.at(round).started));
  running_.erase(round);
  const auto fail = [&](const char* outcome, const std::string& reason) {
    ++stats_.plans[outcome];
    Log(now, "plan", fmt::format("job {}: {}", job.name, reason),
        job.principal);
    FailPlan(job, finished->ranks, reason, effects);
  };
  if (!solved.ok()) {
    fail("failed", std::string(solved.status().message()));
    return effects;
  }
  // Infeasible is an answer, not a fault: each rank gets the plan, whose
  // `infeasible` says what to do.
  const bool feasible = solved->infeasible.empty();
  ++stats_.plans[feasible ? "solved" : "infeasible"];
  stats_.plan_units["solved"] += static_cast<uint64_t>(solved->units_solved);
  stats_.plan_units["known"] += static_cast<uint64_t>(solved->units_known);
  const auto plan = rounds_.Keep(job, finished->cache_key, *std::move(solved));
  rounds_.Use(job, plan->id);
  Log(now, "plan",
      feasible
          ? fmt::format("job {}: plan {} for {} ranks in {:.3f} s", job.name,
                        plan->id.value(), plan->ranks.size(), plan->seconds)
          : fmt::format("job {}: {}", job.name, plan->infeasible),
      job.principal);
  GivePlan(job, finished->ranks, *plan, effects);
  return effects;
}

void Core::PlanProgressed(PlanRoundId round,
                          const plan::PlanProgress& progress) {
  const auto running = running_.find(round);
  if (running != running_.end()) running->second.progress = progress;
}

void Core::UnitsRead(absl::StatusOr<std::vector<KeyedUnit>> units,
                     absl::Time now) {
  const Principal own{config_.own_uid, ""};
  if (!units.ok()) {
    return Log(now, "plan",
               fmt::format("the plan cache is ignored: {}",
                           std::string(units.status().message())),
               own);
  }
  // The file lists the last used first.
  for (auto unit = units->rbegin(); unit != units->rend(); ++unit) {
    units_.Add(std::move(*unit));
  }
  if (units_.size() > 0) {
    Log(now, "plan",
        fmt::format("{} units are planned already, by an earlier daemon",
                    units_.size()),
        own);
  }
}

std::vector<PlanningSnapshot> Core::Planning(const Principal* viewer,
                                             absl::Time now) const {
  std::vector<PlanningSnapshot> all;
  for (const PlanRounds::Open& open : rounds_.OpenRounds()) {
    if (viewer && open.job.principal != *viewer) continue;
    PlanningSnapshot planning{open.job.name, open.job.principal, open.ranks,
                              open.wanted, open.round != PlanRoundId()};
    if (planning.solving) {
      const RunningRound& running = running_.at(open.round);
      planning.elapsed = now - running.started;
      planning.left = open.deadline - now;
      planning.progress = running.progress;
    }
    all.push_back(std::move(planning));
  }
  return all;
}

void Core::GivePlan(const JobKey& job, const std::vector<Rank>& ranks,
                    const plan::NodePlan& plan, Effects& effects) {
  for (const Session* session : RanksOf(job)) {
    if (std::count(ranks.begin(), ranks.end(), session->hello.rank) == 0) {
      continue;
    }
    effects.push_back(SendNotice{session->id, PlanReadyNotice{plan.id}});
  }
}

void Core::FailPlan(const JobKey& job, const std::vector<Rank>& ranks,
                    const std::string& reason, Effects& effects) {
  for (const Session* session : RanksOf(job)) {
    if (std::count(ranks.begin(), ranks.end(), session->hello.rank) == 0) {
      continue;
    }
    effects.push_back(SendNotice{session->id, PlanFailedNotice{reason}});
  }
}

}  // namespace sluice::daemon
