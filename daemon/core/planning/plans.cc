#include "daemon/core/planning/plans.h"

#include "proto/base/status.h"

namespace sluice::daemon {
int PlanRounds::Submit(const JobKey& job, Rank rank, ProfileWithHash profile,
                       int local_ranks) {
  Collecting& round = collecting_[job];
  round.ranks[rank] = std::move(profile);
  round.wanted = local_ranks;
  return std::max(0, local_ranks - static_cast<int>(round.ranks.size()));
}

Asking PlanRounds::Take(const JobKey& job) {
  Asking asking{job, std::move(collecting_.at(job).ranks)};
  collecting_.erase(job);
  return asking;
}

PlanRoundId PlanRounds::Start(Round round) {
  const PlanRoundId id(next_round_++);
  solving_[id] = std::move(round);
  return id;
}

std::optional<PlanRounds::Round> PlanRounds::Finish(PlanRoundId round) {
  auto finished = solving_.extract(round);
  if (finished.empty()) return std::nullopt;
  return std::move(finished.mapped());
}

bool PlanRounds::solving_together() const {
  return std::ranges::any_of(
      solving_, [](const auto& each) { return each.second.together; });
}

void PlanRounds::Progressed(PlanRoundId round,
                            const plan::PlanProgress& progress) {
  Round* solving = FindOrNull(solving_, round);
  if (solving != nullptr) solving->progress = progress;
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

PlanRounds::Plan PlanRounds::Cached(const std::string& key,
                                    bool together) const {
  const std::deque<Kept>& kept = together ? together_ : kept_;
  const auto found = std::ranges::find(kept, key, &Kept::cache_key);
  return found != kept.end() ? found->plan : nullptr;
}

PlanRounds::Plan PlanRounds::Keep(const JobKey& job,
                                  const std::string& cache_key,
                                  plan::NodePlan plan) {
  plan.id = PlanId(next_plan_++);
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  if (kept_.size() >= kPlansKept) {
    const auto oldest = std::ranges::find_if(
        kept_, [&](const Kept& each) { return !InUse(each.plan->id); });
    if (oldest != kept_.end()) kept_.erase(oldest);
  }
  kept_.push_back({job, cache_key, shared});
  return shared;
}

PlanRounds::Plan PlanRounds::KeepTogether(const std::string& cache_key,
                                          plan::NodePlan plan) {
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  together_.push_back({{}, cache_key, shared});
  if (together_.size() > kPlansKept) together_.pop_front();
  return shared;
}

const PlanRounds::Kept* PlanRounds::FindKept(PlanId plan) const {
  const auto found = std::ranges::find(
      kept_, plan, [](const Kept& kept) { return kept.plan->id; });
  return found != kept_.end() ? &*found : nullptr;
}

std::vector<std::pair<JobKey, PlanRounds::Plan>> PlanRounds::PlansOfJobs()
    const {
  std::vector<std::pair<JobKey, Plan>> plans;
  for (const auto* of : {&current_, &promised_}) {
    for (const auto& [job, plan] : *of) {
      plans.emplace_back(job, FindKept(plan)->plan);
    }
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
  if (const auto open = collecting_.extract(job)) add(open.mapped().ranks);
  for (auto next = solving_.begin(); next != solving_.end();) {
    const auto entry = next++;
    Round& round = entry->second;
    if (std::ranges::count(round.jobs, job) == 0) continue;
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
  return std::ranges::any_of(current_.rows(), is) ||
         std::ranges::any_of(promised_.rows(), is);
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
