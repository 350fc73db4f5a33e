#include "daemon/core/plans.h"

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::daemon {

int PlanRounds::Submit(const JobKey& job, Rank rank, Profile profile,
                       int local_ranks) {
  Collecting& round = collecting_[job];
  round.ranks[rank] = std::move(profile);
  round.wanted = local_ranks;
  return std::max(0, local_ranks - static_cast<int>(round.ranks.size()));
}

PlanRounds::Started PlanRounds::Start(const JobKey& job, std::string cache_key,
                                      absl::Time deadline) {
  const auto collected = collecting_.find(job);
  SLUICE_CHECK(collected != collecting_.end());
  Started started{PlanRoundId(next_round_++), {}};
  Solving solving{job, {}, std::move(cache_key), deadline};
  for (auto& [rank, profile] : collected->second.ranks) {
    solving.ranks.push_back(rank);
    started.profiles.push_back(std::move(profile));
  }
  collecting_.erase(collected);
  solving_[started.round] = std::move(solving);
  return started;
}

std::vector<PlanRounds::Open> PlanRounds::OpenRounds() const {
  std::vector<Open> open;
  for (const auto& [job, round] : collecting_) {
    open.push_back({job, static_cast<int>(round.ranks.size()), round.wanted});
  }
  for (const auto& [id, round] : solving_) {
    const int ranks = static_cast<int>(round.ranks.size());
    open.push_back({round.job, ranks, ranks, id, round.deadline});
  }
  return open;
}

std::shared_ptr<const plan::NodePlan> PlanRounds::Cached(
    const std::string& key) const {
  for (const Kept& kept : kept_) {
    if (kept.cache_key == key) return kept.plan;
  }
  return nullptr;
}

std::optional<PlanRounds::Finished> PlanRounds::Finish(PlanRoundId round) {
  const auto solving = solving_.find(round);
  if (solving == solving_.end()) return std::nullopt;
  Finished finished{solving->second.job, std::move(solving->second.ranks),
                    std::move(solving->second.cache_key)};
  solving_.erase(solving);
  return finished;
}

std::vector<PlanRoundId> PlanRounds::Overdue(absl::Time now) const {
  std::vector<PlanRoundId> rounds;
  for (const auto& [round, solving] : solving_) {
    if (solving.deadline <= now) rounds.push_back(round);
  }
  return rounds;
}

absl::Time PlanRounds::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [round, solving] : solving_) {
    next = std::min(next, solving.deadline);
  }
  return next;
}

std::shared_ptr<const plan::NodePlan> PlanRounds::Keep(
    const JobKey& job, const std::string& cache_key, plan::NodePlan plan) {
  plan.id = PlanId(next_plan_++);
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  kept_.push_back({job, cache_key, shared});
  if (kept_.size() > kPlansKept) kept_.pop_front();
  return shared;
}

PlanId PlanRounds::current(const JobKey& job) const {
  const auto used = current_.find(job);
  return used != current_.end() ? used->second : PlanId();
}

std::shared_ptr<const plan::NodePlan> PlanRounds::Find(PlanId plan) const {
  for (const Kept& kept : kept_) {
    if (kept.plan->id == plan) return kept.plan;
  }
  return nullptr;
}

const JobKey* PlanRounds::Owner(PlanId plan) const {
  for (const Kept& kept : kept_) {
    if (kept.plan->id == plan) return &kept.job;
  }
  return nullptr;
}

PlanRounds::Abandoned PlanRounds::RankLeft(const JobKey& job, Rank rank) {
  Abandoned abandoned;
  const auto add = [&](Rank other) {
    if (other != rank) abandoned.ranks.push_back(other);
  };
  if (const auto open = collecting_.find(job); open != collecting_.end()) {
    for (const auto& [other, profile] : open->second.ranks) add(other);
    collecting_.erase(open);
  }
  std::erase_if(solving_, [&](const auto& entry) {
    if (entry.second.job != job) return false;
    for (Rank other : entry.second.ranks) add(other);
    abandoned.solving.push_back(entry.first);
    return true;
  });
  return abandoned;
}

void PlanRounds::JobEnded(const JobKey& job) { current_.erase(job); }

void PlanRounds::CheckInvariants() const {
  for (const auto& [job, round] : collecting_) {
    SLUICE_CHECK(!round.ranks.empty());
  }
  for (const auto& [round, solving] : solving_) {
    SLUICE_CHECK(!solving.ranks.empty() && round.value() < next_round_);
  }
  SLUICE_CHECK(kept_.size() <= kPlansKept);
}

}  // namespace sluice::daemon
