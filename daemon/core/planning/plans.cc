#include "daemon/core/planning/plans.h"

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::daemon {

bool PlanRounds::solving_together() const {
  return std::ranges::any_of(
      solving, [](const auto& each) { return each.second.together; });
}

PlanRounds::Plan PlanRounds::Cached(const std::string& key,
                                    bool of_jobs_together) const {
  const std::deque<Kept>& plans = of_jobs_together ? together : kept;
  const auto found = std::ranges::find(plans, key, &Kept::cache_key);
  return found != plans.end() ? found->plan : nullptr;
}

PlanRounds::Plan PlanRounds::Keep(const JobKey& job,
                                  const std::string& cache_key,
                                  plan::NodePlan plan) {
  plan.id = PlanId(next_plan++);
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  if (kept.size() >= kPlansKept) {
    const auto is_free = [this](const Kept& each) {
      const auto is = [&](const auto& row) {
        return row.second == each.plan->id;
      };
      return std::ranges::none_of(current.rows(), is) &&
             std::ranges::none_of(promised.rows(), is);
    };
    const auto oldest = std::ranges::find_if(kept, is_free);
    if (oldest != kept.end()) kept.erase(oldest);
  }
  kept.push_back({job, cache_key, shared});
  return shared;
}

PlanRounds::Plan PlanRounds::KeepTogether(const std::string& cache_key,
                                          plan::NodePlan plan) {
  auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
  together.push_back({{}, cache_key, shared});
  if (together.size() > kPlansKept) together.pop_front();
  return shared;
}

const PlanRounds::Kept* PlanRounds::FindKept(PlanId plan) const {
  const auto found = std::ranges::find(
      kept, plan, [](const Kept& each) { return each.plan->id; });
  return found != kept.end() ? &*found : nullptr;
}

void PlanRounds::Use(const JobKey& job, PlanId plan) {
  current.Put(job) = plan;
  promised.erase(job);
}

void PlanRounds::CheckInvariants() const {
  for (const auto& [job, round] : collecting) {
    SLUICE_CHECK(!round.ranks.empty());
  }
  int rounds_together = 0;
  for (const auto& [id, round] : solving) {
    SLUICE_CHECK(!round.jobs.empty() && id.value() < next_round);
    SLUICE_CHECK(round.together || round.asking.size() == 1);
    rounds_together += round.together ? 1 : 0;
  }
  SLUICE_CHECK(rounds_together <= 1 && together.size() <= kPlansKept);
  for (const auto* plans : {&current, &promised}) {
    for (const auto& [job, plan] : *plans) {
      SLUICE_CHECK(FindKept(plan) != nullptr);
    }
  }
}

}  // namespace sluice::daemon
