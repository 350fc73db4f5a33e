// Planning of all jobs of the node together: which jobs ask, by which fractions
// jobs run, which plans and leases wait for memory that others give back, and
// when running jobs are planned again.
//
// Core tells it which ranks are attached and what they sent; it reads the
// ledger for what is free, and says what is to be done as effects. README.md
// has the rules; a job's states are drawn there and in replan.h (`Member`).
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/node/types.h"
#include "daemon/core/planning/demands.h"
#include "daemon/core/planning/plans.h"
#include "daemon/core/planning/replan.h"
#include "daemon/core/planning/unit_cache.h"
#include "daemon/core/requests.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/state.h"
#include "daemon/core/waiting.h"
#include "proto/base/table.h"
#include "proto/plan/progress.h"
#include "proto/plan/request.h"

namespace sluice::daemon {

class JointPlanning {
 public:
  // A joint question may take so long while another user's job asks.
  static constexpr absl::Duration kShare = absl::Milliseconds(800);
  // In the traces of one joint question: encoding it holds up other profiles.
  static constexpr size_t kMostBuffers = 50'000;

  // All outlive it.
  JointPlanning(const NodeConfig& config, const Ledger& ledger,
                const WaitingQueue& line, Journal& journal);

  // --- ranks ---------------------------------------------------------------
  void RankAttached(SessionId session, AttachedRank rank);
  // Drops the rank's profiles, gives its peers' plans up, and plans the jobs
  // that stay again. REQUIRES: its leases have ended, also those that wait.
  void RankLeft(SessionId session, absl::Time now, Effects& effects);
  // A rank that reports a step holds all the memory that its plan says.
  void StepReported(SessionId session);
  // Memory of dead processes is free again.
  void MemoryCameBack(absl::Time now);

  // --- plans ---------------------------------------------------------------
  // InvalidArgument: it is of another rank. ResourceExhausted: it and its plans
  // cannot be saved too.
  absl::Status MaySubmit(SessionId session,
                         const plan::RankProfile& profile) const;
  // How many of the rank's peers have not submitted; 0: Ask next.
  int Submit(SessionId session, ProfileWithHash profile);
  void Ask(const JobKey& job, absl::Time now, Effects& effects);
  void PlanSolved(PlanRoundId round, absl::StatusOr<plan::NodePlan> plan,
                  std::vector<KeyedUnit> units, absl::Time now,
                  Effects& effects);
  void PlanTaken(SessionId session, const PlanTakenRequest& taken,
                 absl::Time now);
  // A PlanChangedNotice that did not leave: the rank counts as refusing it.
  void ChangeNotSent(SessionId session, PlanId plan, absl::Time now);
  void Progressed(PlanRoundId round, const plan::PlanProgress& progress) {
    rounds_.Progressed(round, progress);
  }
  std::vector<PlanRoundId> Overdue(absl::Time now) const {
    return rounds_.Overdue(now);
  }

  // --- leases that wait ----------------------------------------------------
  // Whether running jobs may give back what a lease needs that was refused. If
  // so they are planned again, and it is to wait for that (Waiter::for_plan).
  bool AwaitRoom(SessionId session, const LeaseRequest& asked, absl::Time now);
  // Whether a plan that is being made or taken may still give `job` room.
  bool MakesRoom(const JobKey& job) const;
  // Later joins no longer wait for jobs that missed their deadline.
  void MarkShrinkersLate();

  // After each event: what waited and need not any more.
  void Settle(absl::Time now, Effects& effects);
  absl::Time NextDeadline() const;

  // --- reading -------------------------------------------------------------
  // What the copies of each attached rank need that runs by the planner's
  // fractions; while these change, by the former ones. A job with a plan that
  // is held back has none.
  std::map<SessionId, PlanDemand> Demands() const;
  // Grows whenever that, or the attached ranks, may have changed.
  uint64_t demands_version() const {
    return members_.changes() + demands_changes_;
  }
  // What others' plans and leases are to get of a pool; of a GPU's, nothing.
  Bytes PromisedBeside(PoolId pool, const Principal& whose) const;
  // The same for all jobs but `job`.
  Bytes PromisedToOthers(PoolId pool, const JobKey& job) const;
  // What the plan of `job` lets it have there and it does not hold.
  Bytes DueOf(PoolId pool, const JobKey& job) const;
  PlanId CurrentPlan(const JobKey& job) const { return rounds_.current(job); }
  // A plan its job's principal may see; null viewer: any.
  std::shared_ptr<const plan::NodePlan> FindPlan(PlanId id,
                                                 const Principal* viewer) const;
  // What profiles and plans may take of the saved state, by user.
  std::map<Principal, Bytes> KeptProfiles() const;
  std::vector<PlanSnapshot> Plans(const Principal* viewer) const;
  std::vector<PlanningSnapshot> Planning(const Principal* viewer,
                                         absl::Time now) const;
  // Everything but the units.
  JointPlanningState Save() const;
  // REQUIRES: no rank has attached.
  void Load(JointPlanningState saved);
  // Its tables, row by row (SavedAs), and its part of what is in no table.
  // Rounds that are asked or solved are not in them (DueWithout).
  template <typename Each>
  void EachTable(Each each) {
    const auto plans = [this](RowKind kind) {
      return [this, kind](const JobKey& job, const PlanId* plan, auto& visit) {
        visit(kind, job, plan ? rounds_.FindKept(*plan) : nullptr);
      };
    };
    each(members_, SavedAs{RowKind::kMember});
    each(rounds_.in_use(), plans(RowKind::kPlanInUse));
    each(rounds_.promised(), plans(RowKind::kPlanPromised));
  }
  void AddLoose(LooseState& loose) const;
  // `next` where these rounds end with the daemon. Jobs that asked for one ask
  // the next daemon again. No job asks for a round of running jobs alone, and a
  // lease that waits is refused where no round is due: so such a round is due
  // again at once.
  static NextRound DueWithout(
      const std::map<PlanRoundId, PlanRounds::Round>& solving, bool leases_wait,
      NextRound next);
  // After Load: tells ranks again of a change that they have not answered, and
  // plans running jobs again where links are not as their plans were made for;
  // returns whether that is so.
  bool TakeOver(absl::Time now, Effects& effects);

  void CheckInvariants() const;

 private:
  // Ranks.
  std::vector<SessionId> RanksOf(const JobKey& job) const;
  void AbandonPlans(const AttachedRank& left, Effects& effects);
  // A job as `viewer` may call it.
  static std::string NameFor(const JobKey& job, const Principal* viewer);

  // Rounds.
  void StartAlone(Asking asking, absl::Time now, Effects& effects);
  // Asks the worker, or answers from the cache.
  void StartRound(PlanRounds::Round round, std::vector<Position> positions,
                  plan::NodeResources resources, absl::Time now,
                  Effects& effects);
  void AloneSolved(PlanRounds::Round round,
                   std::shared_ptr<const plan::NodePlan> plan, absl::Time now,
                   Effects& effects);
  void RoundFailed(PlanRounds::Round round, PlanOutcome outcome,
                   const absl::Status& why, absl::Time now, Effects& effects);
  void LogPlan(const JobKey& job, const plan::NodePlan& plan, absl::Time now);
  // All jobs are planned together, one round at a time. A round that another
  // user waits for ends after kShare, so that no user waits for another's hard
  // profile; its jobs are then planned alone.
  void CutOffAtShare(absl::Time now, Effects& effects);
  // The worker has the configured time; policy gives up a little later, so
  // that the worker's own word about it arrives first.
  absl::Duration TimeForRound() const {
    return config_.plan_time_limit * 1.25 + absl::Seconds(1);
  }
  void GivePlan(const Asking& asking, PlanId plan, Effects& effects) const;
  // Bytes of each rank's profile with its plans, and, with no rank, of the
  // plans that a job has.
  using KeptSizes = std::map<std::pair<JobKey, std::optional<Rank>>, size_t>;
  KeptSizes SizesOfKept() const;
  void FailPlan(const JobKey& job, const std::vector<Rank>& ranks,
                const PlanFailedNotice& notice, Effects& effects) const;

  // Joins and leaves.
  // The next user's first job, and as many more as have kMostBuffers together.
  std::vector<Asking> TakeNextUsersJobs();
  void StartTogether(absl::Time now, Effects& effects);
  void TogetherSolved(PlanRounds::Round round,
                      std::shared_ptr<const plan::NodePlan> plan,
                      absl::Time now, Effects& effects);
  // Gives a joining job its part of the plan, or holds it back until there is
  // memory for it.
  void AdmitJoin(Asking asking,
                 const std::shared_ptr<const plan::NodePlan>& plan,
                 absl::Time now, Effects& effects);
  void ReleaseHeld(absl::Time now, Effects& effects);
  // Plans running jobs again at `at`, because a job does what `why` says;
  // without a job, `why` is the whole reason.
  void PlanAgain(absl::Time at, std::string why,
                 std::optional<JobKey> whose = std::nullopt);
  // The reason, as the ranks of `to` may read it.
  std::string WhyReplanned(const JobKey& to) const;

  // Changes of running plans.
  void ProposeChange(const JobKey& job,
                     const std::shared_ptr<const plan::NodePlan>& plan,
                     const std::string& why, absl::Time now);
  // Tells members' ranks of their changes, once what these grow by is there, or
  // no member that was told gives it back.
  void AnnounceChanges(absl::Time now, Effects& effects);
  bool AwaitsTold(const JobKey& job) const;
  // All its ranks have answered: with `refused` empty it is taken.
  void EndChange(const JobKey& job, Member& member, const std::string& note,
                 absl::Time now);
  void EndOverdueChanges(absl::Time now);
  // What `job`'s plan needs is free by now.
  bool FitsNow(const JobKey& job) const;
  // Members that give host memory back by their change.
  std::vector<JobKey> Shrinking() const;
  bool Shrinks(const Member& member) const;
  // Whether any of these frees memory that `job` may have.
  bool OthersShrink(const JobKey& job) const;
  bool ShrinksLate() const;

  // Leases that wait.
  // Whether others of its principal could free what the lease needs.
  bool MayEverFit(const JobKey& job, const LeaseRequest& asked) const;

  // What there is for a question.
  plan::NodeResources ResourcesFor(
      const std::vector<Position>& positions) const;
  std::vector<plan::HostLimit> NumaLimits(
      const std::vector<Position>& positions,
      const std::set<JobKey>& jobs) const;
  std::vector<plan::HostLimit> BudgetLimits(
      const std::vector<Position>& positions,
      const std::set<JobKey>& jobs) const;
  // What these plans of a member say they need.
  Bytes HostPromised(const Member& member,
                     const std::map<Rank, plan::RankPlan>& plans,
                     std::optional<uint64_t> numa) const;
  Bytes HostDue(std::optional<uint64_t> numa, const JobKey& job,
                const Member& member) const;
  // What members will still lease and what leases wait for, of one principal
  // or of all; those in `except` aside.
  Bytes HostGrowth(std::optional<uint64_t> numa, const Principal* of,
                   const std::set<JobKey>& except) const;
  Bytes MemberGrowth(std::optional<uint64_t> numa, const Principal* of,
                     const std::set<JobKey>& except) const;
  Bytes LeaseGrowth(std::optional<uint64_t> numa, const Principal* of,
                    const std::set<JobKey>& except) const;

  const NodeConfig& config_;
  const Ledger& ledger_;
  const WaitingQueue& line_;
  Journal& journal_;
  std::map<SessionId, AttachedRank> attached_;
  uint64_t demands_changes_ = 0;  // besides those of members_
  PlanRounds rounds_;
  std::vector<Asking> joining_;      // jobs that ask, in the order of turns
  Table<JobKey, Member> members_;    // jobs that run by the planner's fractions
  std::map<JobKey, HeldJoin> held_;  // members with a plan that is held back
  // What the question has that is being solved for all jobs together.
  std::vector<Position> positions_;
  plan::NodeResources resources_;
  NextRound next_;
  UnitCache units_;
};

}  // namespace sluice::daemon
