// The rule for plans of all jobs together: by which fractions each job runs,
// and which jobs get new ones when a job joins or leaves.
//
// A job that took a plan of a question that was not settled, whether it left
// fractions to the planner or fixed them, is a *member*: it stays in every
// later question, with the profile of its first round, so that what is asked
// does not drift with what was answered. Its memory is planned by itself, so
// the kept profile has no traces.
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

// Fractions nearer than this are the same: a change costs a calibration.
inline constexpr double kFractionStep = 1.0 / 64;
// Smaller differences are worth it where the node's step shortens by this.
inline constexpr double kStepGain = 0.01;

// New fractions that a member's ranks were told of and have not all taken.
struct PlanChange {
  PlanId plan;
  absl::Time since;
  // Once it is told: without all answers by then, it counts as refused.
  absl::Time deadline = absl::InfiniteFuture();
  // Whether joins may wait for what it gives back; once one has waited in vain,
  // no other does.
  enum class Wait { kAwaited, kInVain };
  Wait wait = Wait::kAwaited;
  std::set<Rank> open;     // have not said yet what became of it
  std::set<Rank> refused;  // went on with what they had
  std::map<Rank, plan::RankPlan> before;
  bool operator==(const PlanChange&) const = default;
};

// h2d, d2h and both together of each link that limits, in bytes per second; 0
// if it does not limit them.
using PlannedLinks = std::map<std::string, std::array<double, 3>>;
PlannedLinks PlannedLinksOf(const std::vector<LinkSpeed>& links);

// A job that runs by the planner's fractions. Its states:
//   acquires   has its plan, and not yet all the memory that it promises
//   trains     holds that memory: it reported a step, or answered a change
//   to change  new fractions are decided; what it grows by is not there yet
//   changing   its ranks were told, and have not all answered
// acquires -> trains; any of them -> to change -> changing -> trains. While its
// plan is held back (JointPlanning) a job acquires.
struct Member {
  enum class State { kAcquires, kTrains, kToChange, kChanging };
  State state = State::kAcquires;
  std::map<Rank, ProfileWithHash> profiles;
  // By which it runs, or will once its change is taken; without segments.
  std::map<Rank, plan::RankPlan> ranks;
  std::optional<PlanChange> change;  // in the last two states only
  // The last answer to a settled question.
  std::map<Rank, plan::RankPlan> settled;
  // That its plans are made for; none: an earlier daemon did not say.
  std::optional<PlannedLinks> links;
  bool operator==(const Member&) const = default;
};

// One rank of a question for all, in the order of the question.
struct Position {
  JobKey job;
  Rank rank;
  std::shared_ptr<const plan::RankProfile> profile;
  bool operator==(const Position&) const = default;
};

std::set<JobKey> JobsOf(const std::vector<Position>& positions);
// True where the planner has something to choose for this job.
bool HasFreeFractions(const Asking& asking);
// All profiles only ask for memory (RankProfile::settled): it was promised to
// them, whatever is promised to others.
bool IsSettled(const Asking& asking);
bool IsSettled(const std::vector<Position>& positions);

// A plan's parts by rank, without segments and reasons.
std::map<Rank, plan::RankPlan> PlansOf(const plan::NodePlan& plan);
// What stays of a job that took this plan, made for these links.
Member MemberOf(const Asking& asking, const plan::NodePlan& plan,
                const std::vector<LinkSpeed>& links);

// What later questions ask once a rank's memory is planned: no traces, and
// their peak taken off what it has. `plan` answered `profile`.
ProfileWithHash WithoutTraces(const ProfileWithHash& profile,
                              const plan::RankPlan& plan);

// What the plan says of a class; null: nothing.
const plan::ClassPlan* FindClass(const plan::RankPlan& plan,
                                 const std::string& kind,
                                 const std::string& name);
// The largest difference between two plans' fractions of a class.
double Distance(const plan::RankPlan& a, const plan::RankPlan& b);
// A rank's step with these fractions: windows and recomputation.
double StepSeconds(const plan::RankProfile& profile,
                   const plan::RankPlan& plan);

// Which members get new fractions: where one moves by more than
// kFractionStep, or at all and the node's step gets kStepGain shorter, or
// where what must fit (`hosts`) does not fit without. `answer` has a plan for
// each position, by job number of `jobs`.
std::set<JobKey> WhoChanges(const std::map<JobKey, Member>& members,
                            const std::vector<Position>& positions,
                            const std::vector<plan::HostLimit>& hosts,
                            const std::vector<JobKey>& jobs,
                            const plan::NodePlan& answer);

// Job `number`'s part of a plan for all: its ranks, and of the limits those
// that bind it too, named as in a plan for it alone.
plan::NodePlan PartOf(const plan::NodePlan& answer, int64_t number,
                      const std::vector<Position>& positions, const JobKey& job,
                      const plan::NodeResources& resources);

}  // namespace sluice::daemon
