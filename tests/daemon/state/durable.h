// The part of a core's state that its rows save.
#pragma once

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/core/state.h"

namespace sluice::daemon {

// Returns the part of `state` that survives writing and reading: without rounds
// of planning, plans that no job uses, and sessions that were never ranks.
inline CoreState Durable(CoreState state) {
  std::erase_if(state.sessions,
                [](const auto& each) { return !each.second.was_rank(); });
  JointPlanningState& joint = state.joint;
  joint.joining.clear();
  joint.held.clear();
  PlanRounds& rounds = joint.rounds;
  const bool for_plans =
      std::any_of(state.waiting.waiters.begin(), state.waiting.waiters.end(),
                  [](const auto& each) { return each.second.for_plan; });
  joint.next = JointPlanning::DueWithout(rounds.solving, for_plans,
                                         std::move(joint.next));
  rounds.collecting.clear();
  rounds.solving.clear();
  rounds.together.clear();
  std::set<PlanId> used;
  for (const auto& [job, plan] : rounds.current) used.insert(plan);
  for (const auto& [job, plan] : rounds.promised) used.insert(plan);
  std::erase_if(rounds.kept, [&](const PlanRounds::Kept& kept) {
    return !used.contains(kept.plan->id);
  });
  return state;
}

}  // namespace sluice::daemon
