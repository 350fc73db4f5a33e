// The rules of joint plans: the fractions by which each job runs, and which
// jobs get new ones when a job joins or leaves.
//
// A job that took a plan for a question that was not settled, whether it left
// fractions to the planner or fixed them, is a *member*: it stays in every
// later question with the profile of its first round, so that questions do not
// drift with their answers. Its memory is planned separately, so the kept
// profile has no traces.
//
// Pure functions and plain data. Thread safety: values.
#pragma once

#include <array>
#include <map>
#include <memory>
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

// Smaller differences of fractions do not count: a change costs a calibration.
inline constexpr double kFractionStep = 1.0 / 64;
// They do count if the node's step gets shorter by this part.
inline constexpr double kStepGain = 0.01;

// New fractions for a member that not all its ranks have taken yet.
struct PlanChange {
  PlanId plan;
  absl::Time since;
  // Set when announced. Ranks that have not answered by then refuse.
  absl::Time deadline = absl::InfiniteFuture();
  // Whether joins may wait for the memory that it frees; after one join has
  // waited in vain, no other does.
  enum class Wait { kAwaited, kInVain };
  Wait wait = Wait::kAwaited;
  std::set<Rank> open;     // have not answered yet
  std::set<Rank> refused;  // continue with the former plan
  std::map<Rank, plan::RankPlan> before;
  bool operator==(const PlanChange&) const = default;
};

// The h2d, d2h and total speed of each limited link, in bytes per second; 0:
// not limited.
using PlannedLinks = std::map<std::string, std::array<double, 3>>;
PlannedLinks PlannedLinksOf(const std::vector<LinkSpeed>& links);

// A job that runs by the planner's fractions. Its states:
//   acquires   has its plan, but not yet all the memory that it promises
//   trains     holds that memory: it reported a step, or answered a change
//   to change  new fractions are decided; the memory to grow by is missing
//   changing   the change is announced, but not all ranks have answered
// acquires -> trains; any of them -> to change -> changing -> trains. A job
// with a plan that is held back (JointPlanning) acquires.
struct Member {
  enum class State { kAcquires, kTrains, kToChange, kChanging };
  State state = State::kAcquires;
  std::map<Rank, ProfileWithHash> profiles;
  // The current plans, or those of the change if there is one; without
  // segments.
  std::map<Rank, plan::RankPlan> ranks;
  std::optional<PlanChange> change;  // only in the last two states
  // The last answer to a settled question.
  std::map<Rank, plan::RankPlan> settled;
  // The links that its plans are made for; unset: saved by an older daemon.
  std::optional<PlannedLinks> links;
  bool operator==(const Member&) const = default;
};

// One rank of a joint question, in the order of the question.
struct Position {
  JobKey job;
  Rank rank;
  std::shared_ptr<const plan::RankProfile> profile;
  bool operator==(const Position&) const = default;
};

std::set<JobKey> JobsOf(const std::vector<Position>& positions);
// Returns whether the planner has something to choose for this job.
bool HasFreeFractions(const Asking& asking);
// Returns whether all profiles only ask for memory that was promised to them
// before (RankProfile::settled); it does not depend on promises to others.
bool IsSettled(const Asking& asking);
bool IsSettled(const std::vector<Position>& positions);

// Returns a plan's parts by rank, without segments and reasons.
std::map<Rank, plan::RankPlan> PlansOf(const plan::NodePlan& plan);
// Returns the member for a job that took this plan, made for these links.
Member MemberOf(const Asking& asking, const plan::NodePlan& plan,
                const std::vector<LinkSpeed>& links);

// Returns the profile for later questions, after a rank's memory is planned:
// without traces, and with their peak subtracted from its capacity. `plan`
// answered `profile`.
ProfileWithHash WithoutTraces(const ProfileWithHash& profile,
                              const plan::RankPlan& plan);

// Returns what the plan says of a class; null if nothing.
const plan::ClassPlan* FindClass(const plan::RankPlan& plan,
                                 const std::string& kind,
                                 const std::string& name);
// Returns the largest difference between two plans' fractions of a class.
double Distance(const plan::RankPlan& a, const plan::RankPlan& b);
// Returns a rank's step time with these fractions: windows and recomputation.
double StepSeconds(const plan::RankProfile& profile,
                   const plan::RankPlan& plan);

// Returns the members that get new fractions: those with a fraction that moves
// by more than kFractionStep; all that differ if the node's step gets shorter
// by kStepGain; and those that must shrink so that `hosts` hold. `answer` has a
// plan for each position, by job number of `jobs`.
std::set<JobKey> WhoChanges(const std::map<JobKey, Member>& members,
                            const std::vector<Position>& positions,
                            const std::vector<plan::HostLimit>& hosts,
                            const std::vector<JobKey>& jobs,
                            const plan::NodePlan& answer);

// Returns job `number`'s part of a joint plan: its ranks, and the limits that
// bind it, named as in a plan for it alone.
plan::NodePlan PartOf(const plan::NodePlan& answer, int64_t number,
                      const std::vector<Position>& positions, const JobKey& job,
                      const plan::NodeResources& resources);

}  // namespace sluice::daemon
