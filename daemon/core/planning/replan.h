// The rules of joint plans: by which fractions each job runs, and which jobs
// get new fractions when a job joins or leaves.
//
// A job becomes a *member* when it gets a plan for a question that was not
// settled (IsSettled), whether it left fractions to the planner or fixed them.
// A member is part of every later question, with the profile of its first round
// (without traces), so that questions do not drift with their answers.
//
// Pure functions and plain data.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/planning/plans.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/request.h"

namespace sluice::daemon {

// A difference of fractions below kFractionStep is ignored unless the node's
// step gets shorter by the fraction kStepGain: a change costs a calibration.
inline constexpr double kFractionStep = 1.0 / 64;
inline constexpr double kStepGain = 0.01;

// New fractions for a member, until all its ranks have answered.
struct PlanChange {
  PlanId plan;
  absl::Time since;
  // Set when the change is announced. A rank that misses it counts as refusing.
  absl::Time deadline = absl::InfiniteFuture();
  // Whether joins may wait for the memory that this change frees. After one
  // join has waited in vain, no other waits.
  enum class Wait { kAwaited, kInVain };
  Wait wait = Wait::kAwaited;
  std::set<Rank> open;     // ranks that have not answered yet
  std::set<Rank> refused;  // ranks that continue with the former plan
  std::map<Rank, plan::RankPlan> before;  // the former plans
  bool operator==(const PlanChange&) const = default;
};

// The h2d, d2h and total bytes per second of each limited link; 0: no limit.
using PlannedLinks = std::map<std::string, std::array<double, 3>>;
PlannedLinks PlannedLinksOf(const std::vector<LinkSpeed>& links);

// A job that runs by a joint plan. Its states:
//   acquires   has its plan, but not yet all the memory that it promises
//   trains     holds that memory: it reported a step, or answered a change
//   to change  new fractions are decided; the memory to grow by is missing
//   changing   the change is announced, but not all ranks have answered
// acquires -> trains; any of them -> to change -> changing -> trains. A job is
// in state acquires while its plan is held back (JointPlanning).
struct Member {
  enum class State { kAcquires, kTrains, kToChange, kChanging };
  State state = State::kAcquires;
  Profiles profiles;
  // The current plans, or during a change the new ones; without segments.
  std::map<Rank, plan::RankPlan> ranks;
  std::optional<PlanChange> change;  // set in kToChange and kChanging
  // The plans that answered the last settled question.
  std::map<Rank, plan::RankPlan> settled;
  // The links that its plans are made for; unset: saved by an older daemon.
  std::optional<PlannedLinks> links;
  bool operator==(const Member&) const = default;
};

// Returns whether a job leaves any fraction to the planner.
bool HasFreeFractions(const Profiles& profiles);
// Returns whether the question is *settled*: all profiles ask only for memory
// that was promised to them before (RankProfile::settled), so that the answer
// does not depend on promises to others.
bool IsSettled(const Asking& asking);

// Returns the parts of a plan by rank, without segments and reasons.
std::map<Rank, plan::RankPlan> PlansOf(const plan::NodePlan& plan);
// Returns the member for a job that took this plan, which was made for `links`.
Member MemberOf(const Asking& asking, const plan::NodePlan& plan,
                const std::vector<LinkSpeed>& links);

const plan::ClassPlan* FindClass(const plan::RankPlan& plan,
                                 const std::string& kind,
                                 const std::string& name);
// Returns the members that get new fractions: those with a fraction that moves
// by more than kFractionStep; all with any difference, if the node's step gets
// shorter by kStepGain; and those that must shrink so that the limits of host
// memory hold. `answer` has a plan for each position of `round`.
std::set<JobKey> WhoChanges(const std::map<JobKey, Member>& members,
                            const PlanRounds::Round& round,
                            const plan::NodePlan& answer);

// Returns the part of job `number` of a joint plan: its ranks and the limits
// that bind it, named as in a plan for this job alone.
plan::NodePlan PartOf(const plan::NodePlan& answer, size_t number,
                      const PlanRounds::Round& round);

}  // namespace sluice::daemon
