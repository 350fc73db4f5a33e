// The daemon's policy: events in, effects out.
//
// How it works. Each method is one event: a connection, a request, the end of
// a process, an extent that was made, a plan that was solved, a tick of time.
// It changes the state at once and returns what is to be done, in order. Core
// has no threads, no clock, no sockets and no device: the service executes
// the effects and reports what became of them as further events. So every
// decision can be tested without a process, and replayed.
//
// Errors. What a client did wrong becomes a reply with an absl::Status, or
// the end of its session. Methods for the service CHECK: an event that cannot
// be (a made extent nobody asked for) is a bug.
//
// Thread safety: none; one thread owns a Core.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/effects.h"
#include "daemon/core/event_log.h"
#include "daemon/core/plans.h"
#include "daemon/core/pool.h"
#include "daemon/core/replan.h"
#include "daemon/core/requests.h"
#include "daemon/core/session.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/stats.h"
#include "daemon/core/types.h"
#include "daemon/core/unit_cache.h"
#include "proto/plan/progress.h"
#include "proto/plan/request.h"

namespace sluice::daemon {

class Core {
 public:
  Core(NodeConfig config, absl::Time now);

  // --- connections ---------------------------------------------------------
  // `id` is new. Too many sessions end the oldest half-open one, or this one.
  Effects Connect(SessionId id, const Peer& peer, absl::Time now);
  Effects Receive(SessionId id, RequestId request, const Request& body,
                  absl::Time now);
  // The socket ended, or a packet broke the protocol (`reason` says how; its
  // session is ended).
  Effects SocketEnded(SessionId id, absl::Time now);
  Effects ProtocolBroken(SessionId id, const std::string& reason,
                         absl::Time now);
  // The pidfd reported the end of the process.
  Effects ProcessGone(SessionId id, Exit exit, absl::Time now);

  // --- what became of effects ----------------------------------------------
  Effects ExtentMade(ExtentId id, absl::Time now);
  Effects ExtentFailed(ExtentId id, const absl::Status& why, absl::Time now);
  Effects ProfileRead(SessionId id, RequestId request,
                      absl::StatusOr<ProfileWithHash> profile, absl::Time now);
  // `units`: those that were solved for it.
  Effects PlanSolved(PlanRoundId round, absl::StatusOr<plan::NodePlan> plan,
                     absl::Time now, std::vector<KeyedUnit> units = {});
  // A PlanChangedNotice that did not leave: the rank counts as refusing it.
  Effects ChangeNotSent(SessionId id, PlanId plan, absl::Time now);
  // What ranks have copied, by grant slot, from their use pages.
  void CopiesSeen(const std::map<int, Directions>& used);
  // How far a worker is; of rounds that are over: ignored.
  void PlanProgressed(PlanRoundId round, const plan::PlanProgress& progress);
  // What an earlier daemon saved, or why it is of no use.
  void UnitsRead(absl::StatusOr<std::vector<KeyedUnit>> units, absl::Time now);

  // --- time ----------------------------------------------------------------
  Effects Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // --- administration ------------------------------------------------------
  // A limit that is not given stays. Returns those that hold now. `who` sets
  // it, as far as it said; for the event and for SetLimits.
  absl::StatusOr<Limits> SetBudget(const BudgetTarget& target,
                                   std::optional<Bytes> gpu,
                                   std::optional<Bytes> host, absl::Time now,
                                   const std::string& who = "");
  // Ends every session of a job (of every principal, or only of `uid`);
  // returns how many. Their memory is quarantined until the processes end;
  // `kill` ends those too.
  struct Evicted {
    Effects effects;
    int sessions = 0;
  };
  Evicted Evict(const std::string& job, std::optional<uint32_t> uid, bool kill,
                const std::string& reason, absl::Time now);
  Effects ShutDown(const std::string& reason, absl::Time now);

  // --- reading -------------------------------------------------------------
  // Whose things a session may see; null: everybody's (the daemon's user,
  // where that is not root: root asks on the administrators' socket).
  const Principal* ViewerOf(const Session& session) const;
  // What belongs to `viewer`; null: everything, with statistics.
  Snapshot TakeSnapshot(const Principal* viewer, absl::Time now) const;
  // A plan its job's principal may see; null viewer: any.
  std::shared_ptr<const plan::NodePlan> FindPlan(PlanId id,
                                                 const Principal* viewer) const;
  const NodeConfig& config() const { return config_; }
  PoolSnapshot pool(PoolId id) const;
  const EventLog& log() const { return log_; }
  const Session* session(SessionId id) const;
  // Of whom there is a session or an extent.
  size_t principals() const { return principals_.size(); }

  // Ends the process with a message when bookkeeping contradicts itself.
  void CheckInvariants() const;

 private:
  struct Lease {
    SessionId session;
    RequestId request;
    PoolId pool;
    Bytes size;
    std::vector<Slice> slices;
    int making = 0;        // extents still asked of the device
    absl::Status failure;  // of the first extent that could not be made
    absl::Time asked_at;
    bool granted = false;
  };

  // Requests (core_requests.cc).
  void Answer(Session& session, RequestId request, Reply reply,
              Effects& effects);
  // The answer to a request that comes again.
  Reply Repeat(const Session& session, RequestId request) const;
  void Handle(Session&, RequestId, const HelloRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const LeaseRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const FreeRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const ProfileRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const StepReport&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const PlanTakenRequest&, absl::Time,
              Effects&);
  void Handle(Session&, RequestId, const QueryRequest&, absl::Time, Effects&);
  absl::Status AdmitHello(const Session& session,
                          const HelloRequest& hello) const;
  absl::Status AdmitLease(const Session& session,
                          const LeaseRequest& lease) const;
  int TakeSlot();
  // Not known: no speeds.
  LinkSpeed LinkOf(DeviceIndex gpu) const;

  // Leases (core_leases.cc).
  struct Refusal {
    absl::Status why;  // ok: not refused
    RefusedBy by = RefusedBy::kBudget;
  };
  Refusal TakeLease(Session& session, RequestId request,
                    const LeaseRequest& asked, absl::Time now,
                    Effects& effects);
  void RefuseLease(Session& session, RequestId request, const Refusal& refusal,
                   absl::Time now, Effects& effects);
  void FinishLease(LeaseId id, Lease& lease, absl::Time now, Effects& effects);
  // Gives the slices back: to quarantine when `quarantine` and they were
  // granted, else to the pool. Erases the lease.
  void EndLease(LeaseId id, bool quarantine, Session& session);
  Pool& PoolOf(PoolId id);
  const Pool* FindPool(PoolId id) const;

  // Sessions (core_sessions.cc).
  void Close(Session& session, absl::Time now, Effects& effects);
  void Drop(SessionId id, Effects& effects);
  // After Close: drops what nobody needs any more, so that a process that
  // opens and closes sessions for ever costs no more than one.
  void Tidy(SessionId id, Effects& effects);
  void TellPeers(const Session& session, const std::string& reason,
                 Effects& effects);
  void AbandonPlans(const Session& session, absl::Time now, Effects& effects);
  JobKey KeyOf(const Session& session) const;
  std::vector<Session*> RanksOf(const JobKey& job);
  PrincipalId Intern(const Principal& principal);
  // Forgets those of whom there is neither a session nor an extent.
  void ForgetPrincipals();

  // Plans (core_plans.cc).
  void PlanFor(Asking asking, absl::Time now, Effects& effects);
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
  UnitCache::Units KnownUnits(const std::vector<Asking>& asking);
  std::vector<PlanningSnapshot> Planning(const Principal* viewer,
                                         absl::Time now) const;
  void GivePlan(const Asking& asking, PlanId plan, Effects& effects);
  void FailPlan(const JobKey& job, const std::vector<Rank>& ranks,
                const PlanFailedNotice& notice, Effects& effects);

  // All jobs together (core_replan.cc).
  void StartTogether(absl::Time now, Effects& effects);
  void TogetherSolved(PlanRounds::Round round,
                      std::shared_ptr<const plan::NodePlan> plan,
                      absl::Time now, Effects& effects);
  // A joining job's part; held back where it waits for memory.
  void AdmitJoin(Asking asking,
                 const std::shared_ptr<const plan::NodePlan>& plan,
                 absl::Time now, Effects& effects);
  void ProposeChange(const JobKey& job,
                     const std::shared_ptr<const plan::NodePlan>& plan,
                     const std::string& why, absl::Time now);
  // After each event: what waited and need not any more.
  void Settle(absl::Time now, Effects& effects);
  void ReleaseHeld(absl::Time now, Effects& effects);
  // Tells members' ranks of their changes, where what these grow by is there
  // or nobody who was told gives it back.
  void AnnounceChanges(absl::Time now, Effects& effects);
  void AnnounceChange(const JobKey& job, absl::Time now, Effects& effects);
  bool AwaitsTold(const JobKey& job) const;
  // All its ranks have answered: with `refused` empty it is taken.
  void EndChange(const JobKey& job, Member& member, const std::string& note,
                 absl::Time now);
  void EndOverdueChanges(absl::Time now);
  // True where running jobs may give back what the lease needs: it is
  // answered later.
  bool WaitForLease(const Session& session, RequestId request,
                    const LeaseRequest& asked, const Refusal& refusal,
                    absl::Time now);
  // Whether others of its principal could free what the lease needs.
  bool MayEverFit(const JobKey& job, const LeaseRequest& asked) const;
  void ReleaseLeases(absl::Time now, Effects& effects);
  // Later joins no longer wait for jobs that missed their deadline.
  void MarkShrinkersLate();
  bool ShrinksLate() const;
  // Memory of sessions that ended, whose processes have not yet.
  bool Returning(const Principal& principal) const;
  // A rank of the job left.
  void LeaveTogether(const JobKey& job, absl::Time now);
  // Those who run are planned again at `at`; `why`: what `whose` does, or all
  // of it.
  void PlanAgain(absl::Time at, std::string why,
                 std::optional<JobKey> whose = std::nullopt);
  // As the ranks of `to` may read it.
  std::string WhyReplanned(const JobKey& to) const;
  // What `job`'s plan needs is free by now.
  bool FitsNow(const JobKey& job) const;
  // Members whose change gives host memory back.
  std::vector<JobKey> Shrinking() const;
  bool Shrinks(const Member& member) const;
  // Of these, some that free it for `job`.
  bool OthersShrink(const JobKey& job) const;
  // A job as `viewer` may call it.
  static std::string NameFor(const JobKey& job, const Principal* viewer);

  // What there is for a question (core_resources.cc).
  plan::NodeResources ResourcesFor(
      const std::vector<Position>& positions) const;
  std::vector<plan::HostLimit> NumaLimits(
      const std::vector<Position>& positions,
      const std::set<JobKey>& jobs) const;
  Bytes LeftBeside(const Principal& principal,
                   const std::vector<Position>& positions,
                   const std::set<JobKey>& jobs) const;
  std::vector<plan::HostLimit> BudgetLimits(
      const std::vector<Position>& positions,
      const std::set<JobKey>& jobs) const;
  // Host memory that a job's ranks have leased, of NUMA node `numa` or of all.
  Bytes HostHeld(const JobKey& job, std::optional<uint64_t> numa) const;
  // What these plans of a member say they need.
  Bytes HostPromised(const Member& member,
                     const std::map<Rank, plan::RankPlan>& plans,
                     std::optional<uint64_t> numa) const;
  // What members will still lease and what leases wait for, of one principal
  // or of all; those in `except` aside.
  Bytes HostGrowth(std::optional<uint64_t> numa, const Principal* of,
                   const std::set<JobKey>& except) const;
  Bytes MemberGrowth(std::optional<uint64_t> numa, const Principal* of,
                     const std::set<JobKey>& except) const;
  Bytes LeaseGrowth(std::optional<uint64_t> numa, const Principal* of,
                    const std::set<JobKey>& except) const;

  // Reading and invariants (core.cc).
  void CountCopies(Session& session);
  RankSnapshot SnapshotOf(const Session& session) const;
  std::vector<JobSnapshot> Jobs(const Principal* viewer) const;
  void CheckPools() const;
  void CheckSessions() const;
  void CheckCharges() const;
  void CheckPlans() const;

  void Log(absl::Time now, EventKind kind, std::string text,
           const Principal& whose);

  const NodeConfig config_;
  const absl::Time started_;
  std::map<PoolId, Pool> pools_;
  Budgets budgets_;
  std::map<SessionId, Session> sessions_;
  std::map<LeaseId, Lease> leases_;
  // Extents asked of the device, and the lease that waits for each; 0: the
  // lease ended meanwhile.
  std::map<ExtentId, std::pair<PoolId, LeaseId>> making_;
  struct KnownPrincipal {
    PrincipalId id;
    int sessions = 0;
  };
  std::map<Principal, KnownPrincipal> principals_;
  std::vector<bool> slots_;
  PlanRounds rounds_;
  // All jobs together. Those that ask, in their order; those that run by the
  // planner's fractions; of these, those whose plan is held back.
  std::vector<Asking> joining_;
  std::map<JobKey, Member> members_;
  struct HeldJoin {
    Asking asking;
    PlanId plan;
    absl::Time since, deadline;
  };
  std::map<JobKey, HeldJoin> held_;
  // Host leases, at most one per session: what the calibration of a job without
  // a plan needs, or a member that grows.
  struct WaitingLease {
    SessionId session;
    RequestId request;
    LeaseRequest asked;
    absl::Time since, deadline;
  };
  std::vector<WaitingLease> waiting_leases_;
  // Of the question that is being solved for all.
  std::vector<Position> positions_;
  plan::NodeResources resources_;
  // When those who stay are planned again, after somebody left.
  absl::Time replan_at_ = absl::InfiniteFuture();
  std::string replan_why_;
  std::optional<JobKey> replan_for_;  // names a job not all may read of
  // A join did not wait for memory that may still come.
  bool replan_when_changed_ = false;
  bool memory_came_back_ = false;
  UnitCache units_;
  EventLog log_;
  Stats stats_;
  uint64_t next_extent_ = 1;
  uint64_t next_lease_ = 1;
  uint64_t next_principal_ = 1;
};

}  // namespace sluice::daemon
