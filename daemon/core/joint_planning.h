// Joint planning of all jobs of the node. planning/README.md has the rules;
// replan.h (`Member`) has the states of a job.
// Thread safety: one thread (core.h).
#pragma once

#include <map>
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
#include "daemon/core/planning/plans.h"
#include "daemon/core/planning/replan.h"
#include "daemon/core/planning/unit_cache.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/state.h"
#include "daemon/core/waiting.h"
#include "proto/base/find.h"
#include "proto/base/table.h"
#include "proto/plan/progress.h"

namespace sluice::daemon {

class JointPlanning {
 public:
  // The time limit of a joint question while another user's job waits.
  static constexpr absl::Duration kShare = absl::Milliseconds(800);
  // The limit of buffers in all traces of one joint question, because encoding
  // them delays other profiles.
  static constexpr size_t kMostBuffers = 50'000;

  // All arguments must outlive this object.
  JointPlanning(const NodeConfig& config, const Ledger& ledger,
                const WaitingQueue& line, Journal& journal);

  // --- ranks
  void RankAttached(SessionId session, AttachedRank rank) {
    attached_[session] = std::move(rank);
    ++demands_changes_;
  }
  // Plans the remaining jobs again. REQUIRES: all leases of the rank have
  // ended, also waiting ones.
  void RankLeft(SessionId session, absl::Time now, Effects& effects);
  // A rank has reported a step, so its job has all memory that its plan needs.
  void StepReported(SessionId session);
  // Memory of ended processes has become free.
  void MemoryCameBack(absl::Time now);

  // --- plans
  // InvalidArgument: the profile belongs to another rank. ResourceExhausted:
  // the saved state has no room for it and its plans.
  absl::Status MaySubmit(SessionId session,
                         const plan::RankProfile& profile) const;
  // Returns how many ranks of the job must still submit. If 0, call Ask next.
  int Submit(SessionId session, ProfileWithHash profile);
  void Ask(const JobKey& job, absl::Time now, Effects& effects);
  void PlanSolved(PlanRoundId round, absl::StatusOr<plan::NodePlan> plan,
                  std::vector<KeyedUnit> units, absl::Time now,
                  Effects& effects);
  void PlanTaken(SessionId session, const PlanTakenRequest& taken,
                 absl::Time now);
  void ChangeNotSent(SessionId session, PlanId plan, absl::Time now);
  void Progressed(PlanRoundId id, const plan::PlanProgress& progress) {
    PlanRounds::Round* round = FindOrNull(rounds_.solving, id);
    if (round != nullptr) round->progress = progress;
  }
  std::vector<PlanRoundId> Overdue(absl::Time now) const {
    std::vector<PlanRoundId> late;
    for (const auto& [id, round] : rounds_.solving) {
      if (round.deadline <= now) late.push_back(id);
    }
    return late;
  }

  // --- leases that wait
  // Returns whether running jobs may free the memory that a refused lease
  // needs. If so, the lease must wait (Waiter::for_plan): for a new plan of the
  // running jobs, or if its job is a member already, for changes under way.
  bool AwaitRoom(SessionId session, const LeaseRequest& asked, absl::Time now);
  // Returns whether a pending plan or change may still free memory for `job`.
  bool MakesRoom(const JobKey& job) const;
  // Marks changes that have not freed memory in time (PlanChange::Wait).
  void MarkShrinkersLate();

  void Settle(absl::Time now, Effects& effects);
  absl::Time NextDeadline() const;

  // --- reading
  // Returns the bandwidth needed by each rank that runs by the planner's
  // fractions; during a change, by the former ones. Omits held-back plans.
  std::map<SessionId, PlanDemand> Demands() const;
  // Increases whenever Demands() or the attached ranks may have changed.
  uint64_t demands_version() const {
    return members_.changes() + demands_changes_;
  }
  // Returns how much of a pool is promised to plans and leases of other
  // principals; 0 for a GPU.
  Bytes PromisedBeside(PoolId pool, const Principal& whose) const;
  // Returns how much of a pool is promised to plans and leases of other jobs.
  Bytes PromisedToOthers(PoolId pool, const JobKey& job) const;
  // Returns how much the plan of `job` promises beyond what the job holds.
  Bytes DueOf(PoolId pool, const JobKey& job) const;
  PlanId CurrentPlan(const JobKey& job) const {
    return FindOr(rounds_.current, job);
  }
  // Returns null unless `viewer` (null: all) may see the plan.
  PlanRounds::Plan FindPlan(PlanId id, const Principal* viewer) const;
  // Returns the most bytes that each user's profiles and plans take when saved.
  std::map<Principal, Bytes> KeptProfiles() const;
  std::vector<PlanSnapshot> Plans(const Principal* viewer) const;
  std::vector<PlanningSnapshot> Planning(const Principal* viewer,
                                         absl::Time now) const;
  JointPlanningState Save() const;
  // REQUIRES: no rank has attached.
  void Load(JointPlanningState saved);
  // Visits the saved tables (SavedAs). Rounds that jobs ask for, or that are
  // being solved, are not saved (DueWithout).
  template <typename Each>
  void EachTable(Each each) {
    const auto plans = [this](RowKind kind) {
      return [this, kind](const JobKey& job, const PlanId* plan, auto& visit) {
        visit(kind, job, plan ? rounds_.FindKept(*plan) : nullptr);
      };
    };
    each(members_, SavedAs{RowKind::kMember});
    each(rounds_.current, plans(RowKind::kPlanInUse));
    each(rounds_.promised, plans(RowKind::kPlanPromised));
  }
  void AddLoose(LooseState& loose) const;
  // Returns `next` for a daemon that takes over without these rounds. Jobs that
  // asked for a round ask the next daemon again. But no job asks for a round of
  // running jobs alone, and waiting leases are refused if no round is due. So a
  // round without asking jobs, or any round while leases wait, is due at once.
  static NextRound DueWithout(
      const std::map<PlanRoundId, PlanRounds::Round>& solving, bool leases_wait,
      NextRound next);
  // Call after Load. Repeats the notices of unanswered changes. If plans were
  // made for other links, plans running jobs again and returns true.
  bool TakeOver(absl::Time now, Effects& effects);

  void CheckInvariants() const;

 private:
  using Plan = PlanRounds::Plan;

  std::vector<SessionId> RanksOf(const JobKey& job) const;
  void AbandonPlans(const AttachedRank& left, Effects& effects);

  // Sends the question of these jobs (`together`: and of all members) to the
  // worker, or answers it from the cache.
  void StartRound(std::vector<Asking> asking, bool together, absl::Time now,
                  Effects& effects);
  void AloneSolved(const Asking& asking, const Plan& plan, absl::Time now,
                   Effects& effects);
  void RoundFailed(const PlanRounds::Round& round, const absl::Status& why,
                   absl::Time now, Effects& effects);
  void Log(absl::Time now, const JobKey& job, const std::string& what);
  void LogPlan(const JobKey& job, const plan::NodePlan& plan, absl::Time now);
  // Limits the joint round that is being solved to kShare if another user's job
  // waits, so that no user waits for another user's hard profile. If the round
  // is not solved by then, its jobs are planned alone.
  void CutOffAtShare(absl::Time now, Effects& effects);
  // Returns a little more than the worker's limit, so that the worker's own
  // error arrives first.
  absl::Duration TimeForRound() const {
    return config_.plan_time_limit * 1.25 + absl::Seconds(1);
  }
  void GivePlan(const Asking& asking, PlanId plan, Effects& effects) const;
  // The bytes of each rank's profile and its plans. A row without a rank has
  // the plans that the job uses or was promised.
  using KeptSizes = std::map<std::pair<JobKey, std::optional<Rank>>, size_t>;
  KeptSizes SizesOfKept() const;
  // Sends the notice to those ranks of a job that `ranks` contains.
  template <typename Ranks>
  void Notify(const JobKey& job, const Ranks& ranks, const Notice& notice,
              Effects& effects) const;

  // Removes and returns the next user's first job, and further jobs of that
  // user as long as the traces of all have at most kMostBuffers together.
  std::vector<Asking> TakeNextUsersJobs();
  void StartTogether(absl::Time now, Effects& effects);
  void TogetherSolved(const PlanRounds::Round& round, const Plan& plan,
                      absl::Time now, Effects& effects);
  // Gives a joining job its plan, or holds the plan back until it fits.
  void AdmitJoin(const Asking& asking, const Plan& plan, absl::Time now,
                 Effects& effects);
  void ReleaseHeld(absl::Time now, Effects& effects);
  // Plans running jobs again at `at`, or when the next round is due if that is
  // earlier. The reason is `why`, preceded by the name of `job`.
  void PlanAgain(absl::Time at, std::string why,
                 std::optional<JobKey> job = std::nullopt);

  void ProposeChange(const JobKey& job, const Plan& plan,
                     const std::string& why, absl::Time now);
  void AnnounceChanges(absl::Time now, Effects& effects);
  bool AwaitsTold(const JobKey& job) const;
  // Ends the change: the job keeps its former plan if any rank has refused it.
  void EndChange(const JobKey& job, Member& member, const std::string& note,
                 absl::Time now);
  // Returns whether the memory that `job`'s plan needs is free now.
  bool FitsNow(const JobKey& job) const;
  // Returns the members that will free host memory and that joins may wait for.
  std::vector<JobKey> Shrinking() const;
  bool Shrinks(const Member& member) const;
  // Returns whether another member's change frees memory that `job` may have.
  bool OthersShrink(const JobKey& job) const;
  bool ShrinksLate() const;

  // Returns whether other jobs of the principal could free enough for `asked`.
  bool MayEverFit(const JobKey& job, const LeaseRequest& asked) const;

  plan::NodeResources ResourcesFor(
      const std::vector<Position>& positions) const;
  std::vector<plan::HostLimit> HostLimits(
      const std::vector<Position>& positions) const;
  uint64_t NodeOf(const plan::RankProfile& profile) const;
  // Returns the host memory that `plans` of a member need.
  Bytes HostPromised(const Member& member,
                     const std::map<Rank, plan::RankPlan>& plans,
                     std::optional<uint64_t> numa) const;
  Bytes HostDue(std::optional<uint64_t> numa, const JobKey& job,
                const Member& member) const;
  // Selects host memory: of one NUMA node or all, of one principal or all,
  // without jobs in `except`.
  struct Scope {
    std::optional<uint64_t> numa;
    const Principal* of;
    std::set<JobKey> except;
    bool Has(const JobKey& job) const {
      return !except.contains(job) && (!of || job.principal == *of);
    }
  };
  // Returns how much host memory members will still lease by their plans.
  Bytes MemberGrowth(const Scope& scope) const;
  // Returns how much the leases that wait for plans ask for.
  Bytes LeaseGrowth(const Scope& scope) const;
  Bytes HostGrowth(const Scope& scope) const {
    return MemberGrowth(scope) + LeaseGrowth(scope);
  }

  // Returns kTrains if the job is no member.
  Member::State StateOf(const JobKey& job) const;

  const NodeConfig& config_;
  const Ledger& ledger_;
  const WaitingQueue& line_;
  Journal& journal_;
  std::map<SessionId, AttachedRank> attached_;
  uint64_t demands_changes_ = 0;  // counts all changes except those of members_
  PlanRounds rounds_;
  std::vector<Asking> joining_;      // the next to be planned is first
  Table<JobKey, Member> members_;    // jobs that run by joint plans
  std::map<JobKey, HeldJoin> held_;  // members with a plan that is held back
  NextRound next_;
  UnitCache units_;
};

}  // namespace sluice::daemon
