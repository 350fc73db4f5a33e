#include "daemon/core/planning/plans.h"

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

std::shared_ptr<const plan::NodePlan> FindKey(
    const std::deque<PlanRounds::Kept>& kept, const std::string& key) {
  for (const PlanRounds::Kept& each : kept) {
    if (each.cache_key == key) return each.plan;
  }
  return nullptr;
}

}  // namespace

int PlanRounds::Submit(const JobKey& job, Rank rank, ProfileWithHash profile,
                       int local_ranks) {
  Collecting& round = collecting_[job];
  round.ranks[rank] = std::move(profile);
  round.wanted = local_ranks;
  return std::max(0, local_ranks - static_cast<int>(round.ranks.size()));
}

Asking PlanRounds::Take(const JobKey& job) {
  const auto collected = collecting_.find(job);
  SLUICE_CHECK(collected != collecting_.end());
  Asking asking{job, std::move(collected->second.ranks)};
  collecting_.erase(collected);
  return asking;
}

PlanRoundId PlanRounds::Start(Round round) {
  const PlanRoundId id(next_round_++);
  solving_[id] = std::move(round);
  return id;
}

std::optional<PlanRounds::Round> PlanRounds::Finish(PlanRoundId round) {
  const auto solving = solving_.find(round);
  if (solving == solving_.end()) return std::nullopt;
  Round finished = std::move(solving->second);
  solving_.erase(solving);
  return finished;
}

void PlanRounds::EndBy(PlanRoundId id, absl::Time at) {
  Round& round = solving_.at(id);
  round.deadline = std::min(round.deadline, at);
}

bool PlanRounds::solving_together() const {
  return std::any_of(solving_.begin(), solving_.end(),
                     [](const auto& each) { return each.second.together; });
}

void PlanRounds::Progressed(PlanRoundId round,
                            const plan::PlanProgress& progress) {
  const auto solving = solving_.find(round);
  if (solving != solving_.end()) solving->second.progress = progress;
}

std::vector<PlanRoundId> PlanRounds::Overdue(absl::Time now) const {
  std::vector<PlanRoundId> rounds;
  for (const auto& [id, round] : solving_) {
    if (round.deadline <= now) rounds.push_back(id);
  }
  return rounds;
}

absl::Time PlanRounds::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, round] : solving_) {
    next = std::min(next, round.deadline);
  }
  return next;
}

std::shared_ptr<const plan::NodePlan> PlanRounds::Cached(
    const std::string& key) const {
  return FindKey(kept_, key);
}

std::shared_ptr<const plan::NodePlan> PlanRounds::CachedTogether(
    const std::string& key) const {
  return FindKey(together_, key);
}

std::shared_ptr<const plan::NodePlan> PlanRounds::Keep(
    const JobKey& job, const std::string& cache_key, plan::NodePlan plan) {
  plan.id = PlanId(next_plan_++);
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  if (kept_.size() >= kPlansKept) {
    const auto oldest =
        std::find_if(kept_.begin(), kept_.end(),
                     [&](const Kept& each) { return !InUse(each.plan->id); });
    if (oldest != kept_.end()) kept_.erase(oldest);
  }
  kept_.push_back({job, cache_key, shared});
  return shared;
}

std::shared_ptr<const plan::NodePlan> PlanRounds::KeepTogether(
    const std::string& cache_key, plan::NodePlan plan) {
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  together_.push_back({{}, cache_key, shared});
  if (together_.size() > kPlansKept) together_.pop_front();
  return shared;
}

const PlanRounds::Kept* PlanRounds::FindKept(PlanId plan) const {
  for (const Kept& kept : kept_) {
    if (kept.plan->id == plan) return &kept;
  }
  return nullptr;
}

std::vector<std::pair<JobKey, std::shared_ptr<const plan::NodePlan>>>
PlanRounds::PlansOfJobs() const {
  std::vector<std::pair<JobKey, std::shared_ptr<const plan::NodePlan>>> plans;
  for (const auto* of : {&current_, &promised_}) {
    for (const auto& [job, plan] : *of)
      plans.emplace_back(job, FindKept(plan)->plan);
  }
  return plans;
}

PlanRounds::Abandoned PlanRounds::RankLeft(const JobKey& job, Rank rank) {
  Abandoned abandoned;
  const auto add = [&](const std::map<Rank, ProfileWithHash>& ranks) {
    for (const auto& [other, profile] : ranks) {
      if (other != rank) abandoned.ranks.push_back(other);
    }
  };
  if (const auto open = collecting_.find(job); open != collecting_.end()) {
    add(open->second.ranks);
    collecting_.erase(open);
  }
  for (auto next = solving_.begin(); next != solving_.end();) {
    const auto entry = next++;
    Round& round = entry->second;
    if (std::count(round.jobs.begin(), round.jobs.end(), job) == 0) continue;
    const bool concerned =
        round.asking.empty() ||
        std::ranges::any_of(round.asking, [&](const Asking& asking) {
          return asking.job.principal == job.principal;
        });
    if (!concerned) continue;
    for (Asking& asking : round.asking) {
      if (asking.job == job) {
        add(asking.profiles);
      } else {
        abandoned.again.push_back(std::move(asking));
      }
    }
    abandoned.solving.push_back(entry->first);
    solving_.erase(entry);
  }
  return abandoned;
}

void PlanRounds::Use(const JobKey& job, PlanId plan) {
  current_.Put(job) = plan;
  promised_.erase(job);
}

bool PlanRounds::InUse(PlanId plan) const {
  const auto is = [&](const auto& each) { return each.second == plan; };
  return std::any_of(current_.begin(), current_.end(), is) ||
         std::any_of(promised_.begin(), promised_.end(), is);
}

void PlanRounds::JobEnded(const JobKey& job) {
  current_.erase(job);
  promised_.erase(job);
}

PlanRounds::Saved PlanRounds::Save() const {
  return {collecting_, solving_,  current_.rows(), promised_.rows(),
          kept_,       together_, next_round_,     next_plan_};
}

void PlanRounds::Load(Saved saved) {
  collecting_ = std::move(saved.collecting);
  solving_ = std::move(saved.solving);
  current_.Load(std::move(saved.current));
  promised_.Load(std::move(saved.promised));
  kept_ = std::move(saved.kept);
  together_ = std::move(saved.together);
  next_round_ = saved.next_round;
  next_plan_ = saved.next_plan;
}

void PlanRounds::CheckInvariants() const {
  for (const auto& [job, round] : collecting_) {
    SLUICE_CHECK(!round.ranks.empty());
  }
  int together = 0;
  for (const auto& [id, round] : solving_) {
    SLUICE_CHECK(!round.jobs.empty() && id.value() < next_round_);
    SLUICE_CHECK(round.together || round.asking.size() == 1);
    together += round.together ? 1 : 0;
  }
  SLUICE_CHECK(together <= 1);
  SLUICE_CHECK(together_.size() <= kPlansKept);
  for (const auto* plans : {&current_, &promised_}) {
    for (const auto& [job, plan] : *plans)
      SLUICE_CHECK(FindKept(plan) != nullptr);
  }
}

}  // namespace sluice::daemon
