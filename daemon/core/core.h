// The daemon's policy: events in, effects out.
//
// How it works. Each method is one event: a connection, a request, the end of
// a process, an extent that was made, a plan that was solved, a tick of time.
// It changes the state at once and returns what is to be done, in order. Core
// has no threads, no clock, no sockets and no device: the service executes
// the effects and reports what became of them as further events. So every
// decision can be tested without a process, and replayed.
//
// Core only routes: it gives each event to the parts that it concerns, in
// order, and joins their effects. Each part keeps its own invariants and knows
// only those that stand before it among Core's members.
//
// Errors. What a client did wrong becomes a reply with an absl::Status, or
// the end of its session. Methods for the service CHECK: an event that cannot
// be (a made extent that was not asked for) is a bug.
//
// Thread safety: none; one thread owns a Core.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/copies.h"
#include "daemon/core/effects.h"
#include "daemon/core/joint_planning.h"
#include "daemon/core/journal.h"
#include "daemon/core/lease_waits.h"
#include "daemon/core/leases.h"
#include "daemon/core/ledger.h"
#include "daemon/core/live_policy.h"
#include "daemon/core/outside_memory.h"
#include "daemon/core/session_table.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/state.h"
#include "daemon/core/waiting.h"
#include "proto/plan/progress.h"

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
  using ExtentOutcome = Leases::ExtentOutcome;
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
  void CopiesSeen(const std::map<int, Directions>& used) { copies_.Seen(used); }
  void LateSeen(const std::map<int, LateDirections>& late) {
    copies_.LateSeen(late);
  }
  // How far a worker is; of rounds that are over: ignored.
  void PlanProgressed(PlanRoundId round, const plan::PlanProgress& progress) {
    joint_.Progressed(round, progress);
  }

  // The machine has so much less memory left than it should: idle host memory
  // goes.
  Effects MachineNeeds(Bytes bytes) {
    Effects effects;
    ledger_.GiveUpIdleHost(bytes, effects);
    return effects;
  }

  // --- time ----------------------------------------------------------------
  Effects Tick(absl::Time now);
  absl::Time NextDeadline() const;

  // --- administration ------------------------------------------------------
  // LivePolicy::Apply. A drained node grants nothing new.
  absl::StatusOr<Effects> Apply(const PolicyChange& change, absl::Time now);
  // LivePolicy::Start.
  absl::Status SetPolicy(const Policy& policy, absl::Time now) {
    return policy_.Start(policy, now);
  }
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
  Snapshot TakeSnapshot(const Principal* viewer, absl::Time now) const {
    return SnapshotOf(*this, viewer, now);
  }
  const NodeConfig& config() const { return config_; }
  PoolSnapshot pool(PoolId id) const { return SnapshotOf(ledger_, id); }
  const EventLog& log() const { return journal_.log; }
  const Stats& stats() const { return journal_.stats; }
  const SessionTable& sessions() const { return sessions_; }
  const Session* session(SessionId id) const { return sessions_.Find(id); }
  const Ledger& ledger() const { return ledger_; }
  const WaitingQueue& waiting() const { return line_; }
  const JointPlanning& planning() const { return joint_; }
  const LivePolicy& live_policy() const { return policy_; }
  const LeaseWaits& waits() const { return waits_; }
  const Copies& copies() const { return copies_; }
  absl::Time started() const { return started_; }

  // Everything but the journal and the units (state.h).
  CoreState Save() const {
    return {ledger_.Save(), joint_.Save(),   sessions_.rows().rows(),
            last_session_,  policy_.drain(), line_.Save(),
            NamesOfGpus()};
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
  bool NoticesSent() { return sessions_.NoticesSent(); }
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
  GpuNames NamesOfGpus() const;
  void Dispatch(Session& session, RequestId request, const Request& body,
                absl::Time now, Effects& effects);
  void Attach(Session& session, RequestId request, const HelloRequest& hello,
              absl::Time now, Effects& effects);
  absl::Status MayAttach(const Session& session,
                         const HelloRequest& hello) const;
  // The socket's life ends: leases end, what the process may still map goes to
  // quarantine. The session stays until its process is gone.
  void Close(Session& session, absl::Time now, Effects& effects);
  void Drop(SessionId id, absl::Time now, Effects& effects);
  // Close while its process lives. Drops sessions that are not needed any more,
  // so that a process that opens and closes sessions for ever costs no more
  // than one.
  void CloseAlone(Session& session, absl::Time now, Effects& effects);
  // After each event: what waited and need not any more.
  void Settle(absl::Time now, Effects& effects);
  // Each table that is saved but the sessions', which have tables themselves.
  template <typename Each>
  void EachTable(Each each);

  // Fixed, but for speeds of links that are measured.
  NodeConfig config_;
  const absl::Time started_;
  Journal journal_;
  SessionId last_session_;
  // Each knows those above it.
  SessionTable sessions_{config_, journal_};
  Ledger ledger_{config_};
  OutsideMemory outside_{config_, sessions_, ledger_, journal_};
  WaitingQueue line_;
  JointPlanning joint_{config_, ledger_, line_, journal_};
  LivePolicy policy_{config_, sessions_, ledger_, joint_, journal_};
  Leases leases_{sessions_, ledger_, policy_, journal_};
  LeaseWaits waits_{config_, sessions_, ledger_, joint_,
                    policy_, leases_,   line_,   journal_};
  Copies copies_{config_, sessions_, joint_, journal_};
};

template <typename Each>
void Core::EachTable(Each each) {
  ledger_.EachTable(each);
  joint_.EachTable(each);
  each(line_.rows(), SavedAs{RowKind::kWaiter});
}

template <typename Visit>
void Core::TakeChanged(Visit visit) {
  EachTable([&](auto& table, const auto& save) {
    table.TakeChanged(
        [&](const auto& key, const auto* row) { save(key, row, visit); });
  });
  sessions_.TakeChanged(visit);
}

}  // namespace sluice::daemon
