// The daemon's policy: events in, effects out.
//
// How it works. Each method is one event: a connection, a request, the end of
// a process, an extent that was made, a plan that was solved, a tick of time.
// It changes the state at once and returns what is to be done, in order. Core
// has no threads, no clock, no sockets and no device: the service executes
// the effects and reports what became of them as further events. So every
// decision can be tested without a process, and replayed.
//
// Core keeps the sessions and the line of leases that wait, and routes: memory
// is the ledger's (ledger.h), plans are joint planning's (joint_planning.h),
// and both write into one journal.
//
// Errors. What a client did wrong becomes a reply with an absl::Status, or
// the end of its session. Methods for the service CHECK: an event that cannot
// be (a made extent that was not asked for) is a bug.
//
// Thread safety: none; one thread owns a Core.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/link_sharers.h"
#include "daemon/core/planning/joint_planning.h"
#include "daemon/core/policy.h"
#include "daemon/core/requests.h"
#include "daemon/core/session.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/state.h"
#include "daemon/core/types.h"
#include "daemon/core/waiting.h"
#include "proto/base/table.h"
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
  // The client repeats no request up to this one (RequestHistory).
  void Acknowledge(SessionId id, RequestId up_to);
  // The socket ended, or a packet broke the protocol (`reason` says how; its
  // session is ended).
  Effects SocketEnded(SessionId id, absl::Time now);
  Effects ProtocolBroken(SessionId id, const std::string& reason,
                         absl::Time now);
  // The pidfds reported the ends of these processes. Ranks that end together,
  // as those of a job that is killed, get no notices of each other's ends.
  struct Gone {
    SessionId session;
    Exit exit;
  };
  Effects ProcessesGone(const std::vector<Gone>& gone, absl::Time now);

  // --- what became of effects ----------------------------------------------
  struct ExtentOutcome {
    ExtentId extent;
    absl::Status made;
  };
  // A lease may have thousands, and each event is saved: so all at once that
  // are known at once.
  Effects ExtentsMade(const std::vector<ExtentOutcome>& outcomes,
                      absl::Time now);
  // A granted lease that did not leave, since its extents have no descriptors
  // that could be sent: it is refused after all, and nothing stays charged.
  Effects GrantNotSent(SessionId id, LeaseId lease, const absl::Status& why,
                       absl::Time now);
  struct HolderAnswer {
    ExtentId extent;
    Held held = Held::kUnknown;
  };
  Effects HoldersKnown(const std::vector<HolderAnswer>& answers,
                       absl::Time now);
  // What others hold of the pools; asked again while they hold anything.
  Effects OutsideKnown(HeldOutside said, absl::Time now);
  Effects ProfileRead(SessionId id, RequestId request,
                      absl::StatusOr<ProfileWithHash> profile, absl::Time now);
  // `units`: those that were solved for it.
  Effects PlanSolved(PlanRoundId round, absl::StatusOr<plan::NodePlan> plan,
                     absl::Time now, std::vector<KeyedUnit> units = {});
  // A PlanChangedNotice that did not leave: the rank counts as refusing it.
  Effects ChangeNotSent(SessionId id, PlanId plan, absl::Time now);
  // What ranks have copied, by grant slot, from their use pages; and which of
  // their copies were late, as GrantPolicy::late.
  void CopiesSeen(const std::map<int, Directions>& used);
  void LateSeen(const std::map<int, LateDirections>& late);
  // How far a worker is; of rounds that are over: ignored.
  void PlanProgressed(PlanRoundId round, const plan::PlanProgress& progress);

  // The machine has so much less memory left than it should: idle host memory
  // goes.
  Effects MachineNeeds(Bytes bytes);

  // --- time ----------------------------------------------------------------
  Effects Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // --- administration ------------------------------------------------------
  // What the policy would be with `change`, or why it is refused: the errors of
  // Budgets::Set, Ledger::MayReserve and CheckMeasured; FailedPrecondition if
  // there is no drain to end, or no measurement to forget.
  absl::StatusOr<Policy> PolicyWith(const PolicyChange& change,
                                    absl::Time now) const;
  // Puts it in force; errors as above. A drained node grants nothing new.
  // Measured links hold at once if no rank is attached, else as soon as none
  // is, since promises and plans of ranks were made for the former links.
  absl::StatusOr<Effects> Apply(const PolicyChange& change, absl::Time now);
  Policy policy() const {
    return {ledger_.budgets().Live(), ledger_.reservations(), drain_,
            measured_};
  }
  // What an earlier daemon kept; before the first session. InvalidArgument: it
  // reserves more than this node has.
  absl::Status SetPolicy(const Policy& policy, absl::Time now);
  // Whether it waits until no rank is attached.
  bool measured_waits() const { return links_wait_; }
  // Attached ranks.
  int ranks() const;
  // Sessions of ranks, or of processes that may still hold what they had.
  bool has_ranks() const;
  // Ends every session of a job (of every principal, or only of `uid`);
  // returns how many. Their memory is quarantined until the processes end;
  // `kill` ends those too, and those of sessions that ended before.
  struct Evicted {
    Effects effects;
    int sessions = 0;
    int processes = 0;  // to be killed
  };
  Evicted Evict(const std::string& job, std::optional<uint32_t> uid, bool kill,
                const std::string& reason, absl::Time now);
  Effects ShutDown(const std::string& reason, absl::Time now);

  // --- reading -------------------------------------------------------------
  // InvalidArgument: there is no such GPU. Unavailable: it cannot be used.
  absl::Status CheckGpu(DeviceIndex gpu) const;
  // A session may see this principal's jobs; null if it may see all, as the
  // daemon's user may if that is not root (root asks on the administrators'
  // socket).
  const Principal* ViewerOf(const Session& session) const;
  // What belongs to `viewer`; null: everything, with statistics.
  Snapshot TakeSnapshot(const Principal* viewer, absl::Time now) const;
  // A plan its job's principal may see; null viewer: any.
  std::shared_ptr<const plan::NodePlan> FindPlan(
      PlanId id, const Principal* viewer) const {
    return joint_.FindPlan(id, viewer);
  }
  const NodeConfig& config() const { return config_; }
  PoolSnapshot pool(PoolId id) const;
  // Whether the session has a lease, or one is being made for it.
  bool HasLease(SessionId id) const { return !ledger_.LeasesOf(id).empty(); }
  const EventLog& log() const { return journal_.log; }
  const Ledger& ledger() const { return ledger_; }
  const WaitingQueue& waiting() const { return waiting_; }
  // What profiles and plans may take of the saved state, by user.
  std::map<Principal, Bytes> KeptProfiles() const {
    return joint_.KeptProfiles();
  }
  const Stats& stats() const { return journal_.stats; }
  const Session* session(SessionId id) const;

  // Everything but the journal and the units (state.h).
  CoreState Save() const {
    return {ledger_.Save(), joint_.Save(), sessions_.rows(),
            last_session_,  drain_,        waiting_.Save()};
  }
  // Into a Core of the same node that no session has reached.
  void Load(CoreState saved);
  // After Load of what a daemon that is gone saved. The sockets of the sessions
  // in `reached` came along; the other sessions have ended. The device is asked
  // again what it was asked before, ranks are told again what they may not have
  // heard, and running jobs are planned again if that was under way. Requests
  // that were interrupted, and rounds that jobs asked for, are forgotten:
  // clients repeat them.
  Effects TakeOver(const std::set<SessionId>& reached, absl::Time now);
  // All notices so far have been sent: a daemon that takes over need not send
  // them again. False: nothing changed.
  bool NoticesSent();
  // The same row by row: visit(kind, key, row) of each that changed since the
  // last time (state.h), but for what administrators set, which is kept on a
  // disk, for rounds of planning, and for sessions that never were a rank's.
  template <typename Visit>
  void TakeChanged(Visit visit);
  // The next time all rows; until then no change is noted.
  void TouchAll();
  LooseState Loose() const;

  // Ends the process with a message when bookkeeping contradicts itself.
  void CheckInvariants() const;

 private:
  // Requests (core_requests.cc; each kind's in the file of its subject).
  void Answer(Session& session, RequestId request, Reply reply,
              Effects& effects);
  // The answer to a request that comes again.
  Reply Repeat(const Session& session, RequestId request) const;
  void Handle(Session&, RequestId, const HelloRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const LeaseRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const FreeRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const ProfileRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const StepReportRequest&, absl::Time,
              Effects&);
  void Handle(Session&, RequestId, const PlanTakenRequest&, absl::Time,
              Effects&);
  void Handle(Session&, RequestId, const QueryRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const GiveUpRequest&, absl::Time, Effects&);
  void Handle(Session&, RequestId, const GpuUseRequest&, absl::Time, Effects&);
  // Why nothing is granted; ok: the node is not drained.
  absl::Status CheckDrain() const;
  // Says in the log what jobs hold of GPUs that cannot be used any more.
  void NameWhatFaultyGpusHold(absl::Time now);
  absl::Status AdmitHello(const Session& session,
                          const HelloRequest& hello) const;
  int TakeSlot();

  // Policy (core_policy.cc): changes `policy`; returns what the log says of it.
  absl::StatusOr<std::string> Put(const BudgetChange& change, absl::Time now,
                                  Policy& policy) const;
  absl::StatusOr<std::string> Put(const ReservationChange& change,
                                  absl::Time now, Policy& policy) const;
  absl::StatusOr<std::string> Put(const DrainChange& change, absl::Time now,
                                  Policy& policy) const;
  absl::StatusOr<std::string> Put(const LinksChange& change, absl::Time now,
                                  Policy& policy) const;
  void Enforce(const Policy& policy);

  // Steps (core_steps.cc).
  void CountCopies(Session& session);

  // Leases (core_leases.cc).
  Refusal TakeLease(const Session& session, RequestId request,
                    const LeaseRequest& asked, absl::Time now,
                    Effects& effects);
  void RefuseLease(Session& session, RequestId request, const Refusal& refusal,
                   absl::Time now, Effects& effects);
  // Answers a lease that is granted or could not be made.
  void Decide(const Ledger::Decided& decided, absl::Time now, Effects& effects);
  // A lease of it began or ended, or could not be made.
  void TellHolding(const Session& session, Effects& effects) const;

  // What is held outside leases (outside/core_outside.cc).
  // Where that begins or ends with what `held` says: to be set next.
  void LogOutside(const HeldOutside& held, absl::Time now);
  std::set<PoolId> GpusWithRanks() const;
  // What the other ranks of its GPU have told.
  Bytes OutsideOfOthers(const Session& session) const;
  void LowerShares();

  // Leases that wait (core_waiting.cc).
  Rights RightsOf(const JobKey& job, const LeaseRequest& asked) const;
  // The part of the pool's free memory that plans of other jobs are to get.
  Bytes PromisedToOthers(const JobKey& job, PoolId pool) const;
  // Why a new request has to stay behind one that waits; ok: it need not.
  Refusal StaysBehind(const Session& session, const LeaseRequest& asked,
                      absl::Time now) const;
  // Gives leases that wait for plans their turn; when nothing comes for one any
  // more, it joins the line or is refused.
  void ReleaseForPlans(const Woken& woken, absl::Time now, Effects& effects);
  Woken TakeWoken();
  // It stands in line from now on where it may; else it is refused.
  void WaitOrRefuse(const Session& session, RequestId request,
                    const LeaseRequest& asked, absl::Time since,
                    const Refusal& refusal, absl::Time now, Effects& effects);
  // Ok: it stands in line.
  Refusal StandInLine(const Session& session, RequestId request,
                      const LeaseRequest& asked, absl::Time since,
                      const Refusal& refusal, absl::Time now);
  WaitingQueue::Turn TakeTurn(const Waiter& waiter, absl::Time now,
                              Effects& effects);
  // For whom it is the answer: what is in front or missing.
  std::string WhyItWaits(const JobKey& job, const LeaseRequest& asked,
                         Waiter::Lacks lacks,
                         const WaitingQueue::InFront& front,
                         absl::Time now) const;
  void ReleaseWaiting(absl::Time now, Effects& effects);
  std::vector<WaitingSnapshot> Waiting(const Principal* viewer,
                                       absl::Time now) const;
  void CheckWaiting() const;

  // Sessions (core_sessions.cc).
  void NotePlansTold(const Effects& effects);
  void Close(Session& session, absl::Time now, Effects& effects);
  void Drop(SessionId id, absl::Time now, Effects& effects);
  // After Close: drops sessions that are not needed any more, so that a process
  // that opens and closes sessions for ever costs no more than one.
  void Tidy(SessionId id, absl::Time now, Effects& effects);
  void TellDeaths(const Session& session, Effects& effects) const;
  void NoteExit(const Session& session, const Exit& exit, absl::Time now,
                Effects& effects);
  void TellPeers(const Session& session, const std::string& reason,
                 Effects& effects);

  // After each event: what waited and need not any more.
  void Settle(absl::Time now, Effects& effects);

  // Copies of planned steps (core_demands.cc): what each rank's plan needs of
  // its links, and what of that is promised.
  struct Copies {
    PlanDemand demand;
    CopyRates promised = {0, 0};
    bool operator==(const Copies&) const = default;
  };
  std::map<SessionId, Copies> CopiesOfPlans() const;
  // Where plans or ranks have changed.
  void PromiseAnew(absl::Time now, Effects& effects);
  void LogUnpromised(const Session& session, const Copies& copies,
                     absl::Time now);

  // What was measured of links (core_policy.cc).
  void StartMeasured(const std::optional<MeasuredLinks>& measured,
                     absl::Time now);
  // Where they wait and no rank is attached any more.
  void UseLinksThatWait(Effects& effects);

  // Reading and invariants (core.cc).
  RankSnapshot SnapshotOf(const Session& session) const;
  std::vector<JobSnapshot> Jobs(const Principal* viewer) const;
  // Each table that is saved but the sessions', which have tables themselves.
  template <typename Each>
  void EachTable(Each each);
  void CheckSessions() const;

  void Log(absl::Time now, EventKind kind, std::string text,
           const Principal& whose, Cause cause = {}) {
    journal_.Log(now, kind, std::move(text), whose, cause);
  }

  // Fixed, but for speeds of links that are measured.
  NodeConfig config_;
  const std::vector<LinkSpeed> configured_links_;  // without those
  const absl::Time started_;
  Journal journal_;
  Ledger ledger_;
  WaitingQueue waiting_;
  JointPlanning joint_;
  Table<SessionId, Session> sessions_;
  // Sessions that sent no Hello yet. The first is the oldest, which has the
  // next deadline.
  std::set<SessionId> half_open_;
  SessionId last_session_;
  std::set<SessionId> to_tell_;  // those that have deaths_to_tell
  std::optional<Drain> drain_;
  std::optional<MeasuredLinks> measured_;  // kept with the policy
  bool links_wait_ = false;  // config_'s are not yet as `measured_` has them
  std::vector<bool> slots_;
  // What TakeWoken saw of each pool last.
  std::map<PoolId, uint64_t> changes_seen_;
  // Follows from the above, so it is not saved: as of that version of demands.
  std::map<SessionId, Copies> copies_of_plans_;
  uint64_t copies_version_ = 0;
  // What is counted of each rank's late copies. Not saved: the next daemon's
  // grants count anew.
  std::map<SessionId, LateDirections> late_;
};

template <typename Each>
void Core::EachTable(Each each) {
  ledger_.EachTable(each);
  joint_.EachTable(each);
  each(waiting_.rows(), SavedAs{RowKind::kWaiter});
}

template <typename Visit>
void Core::TakeChanged(Visit visit) {
  EachTable([&](auto& table, const auto& save) {
    table.TakeChanged(
        [&](const auto& key, const auto* row) { save(key, row, visit); });
  });
  sessions_.TakeChanged([&](SessionId id, Session* session) {
    // A session that is no rank yet is saved whole when it becomes one.
    if (session != nullptr && !session->was_rank()) return;
    visit(RowKind::kSession, id, session);
    if (session == nullptr) return;
    session->history.requests().TakeChanged(
        [&](RequestId request, const std::optional<Reply>* reply) {
          visit(RowKind::kReply, std::pair(id, request), reply);
        });
  });
}

}  // namespace sluice::daemon
