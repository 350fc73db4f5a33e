// The daemon's policy: events in, effects out.
//
// Each method is one event, such as a request, the end of a process, or a tick
// of time. It changes the state at once and returns the effects to execute, in
// order; the service reports their outcomes as further events. Core only gives
// each event to the parts that it concerns, in order, and joins their effects.
//
// Errors. A client's error becomes a reply with an absl::Status, or ends its
// session. An impossible event (such as a made extent that was not requested)
// is a bug (CHECK).
//
// Thread safety: none; one thread owns a Core with all of its parts.
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

  // --- connections
  // Adds a session; `id` is new. If there are too many, ends a half-open one
  // (SessionTable::EndedByOneMore), or the new one if none is half-open.
  Effects Connect(SessionId id, const Peer& peer, absl::Time now);
  Effects Receive(SessionId id, RequestId request, const Request& body,
                  absl::Time now);
  // The client will not repeat any request up to `up_to` (RequestHistory).
  void Acknowledge(SessionId id, RequestId up_to) {
    if (up_to == RequestId()) return;
    if (Session* const session = sessions_.FindOpen(id)) {
      session->history.Acknowledge(up_to);
    }
  }
  Effects SocketEnded(SessionId id, absl::Time now) {
    Effects effects;
    if (Session* const session = sessions_.FindOpen(id)) {
      CloseAlone(*session, now, effects);
    }
    return effects;
  }
  // A packet broke the protocol, as `reason` says. Closes the session.
  Effects ProtocolBroken(SessionId id, const std::string& reason,
                         absl::Time now);
  // The pidfds reported the end of these processes. Ranks that end together,
  // such as those of a killed job, get no notices of each other's end.
  struct Gone {
    SessionId session;
    Exit exit;
  };
  Effects ProcessesGone(const std::vector<Gone>& gone, absl::Time now);

  // --- outcomes of effects
  using ExtentOutcome = Leases::ExtentOutcome;
  // All outcomes that are known at this time are one event, because the state
  // is saved after each event and a lease may have thousands of extents.
  Effects ExtentsMade(const std::vector<ExtentOutcome>& outcomes,
                      absl::Time now) {
    return Run(now, [&](Effects& effects) {
      leases_.ExtentsMade(outcomes, now, effects);
    });
  }
  // The descriptors of a granted lease could not be sent. Refuses the lease
  // after all, and refunds it.
  Effects GrantNotSent(SessionId id, LeaseId lease, const absl::Status& why,
                       absl::Time now) {
    return Run(now, [&](Effects& effects) {
      leases_.NotSent(id, lease, why, now, effects);
    });
  }
  struct HolderAnswer {
    ExtentId extent;
    Held held = Held::kUnknown;
  };
  Effects HoldersKnown(const std::vector<HolderAnswer>& answers,
                       absl::Time now);
  Effects OutsideKnown(HeldOutside said, absl::Time now) {
    return CameBack(outside_.Known(std::move(said), now), now);
  }
  Effects ProfileRead(SessionId id, RequestId request,
                      absl::StatusOr<ProfileWithHash> profile, absl::Time now);
  // `units`: the units that the worker solved for this plan.
  Effects PlanSolved(PlanRoundId round, absl::StatusOr<plan::NodePlan> solved,
                     absl::Time now, std::vector<KeyedUnit> units = {}) {
    return Run(now, [&](Effects& effects) {
      joint_.PlanSolved(round, std::move(solved), std::move(units), now,
                        effects);
    });
  }
  // A PlanChangedNotice could not be sent: the rank counts as refusing it.
  Effects ChangeNotSent(SessionId id, PlanId plan, absl::Time now) {
    return Run(now, [&](Effects&) { joint_.ChangeNotSent(id, plan, now); });
  }
  // What ranks have copied, by grant slot: bytes from their use pages, and late
  // copies from GrantPolicy::late.
  void CopiesSeen(const std::map<int, Directions>& used,
                  const std::map<int, LateDirections>& late) {
    copies_.Seen(used, late);
  }
  // Ignored if the round is over.
  void PlanProgressed(PlanRoundId round, const plan::PlanProgress& progress) {
    joint_.Progressed(round, progress);
  }
  // The machine has `bytes` less available memory than it should: releases as
  // much idle host memory.
  Effects MachineNeeds(Bytes bytes) {
    Effects effects;
    ledger_.GiveUpIdleHost(bytes, effects);
    return effects;
  }

  // --- time
  Effects Tick(absl::Time now);
  absl::Time NextDeadline() const {
    return std::min({joint_.NextDeadline(), ledger_.NextDeadline(),
                     line_.NextDeadline(), sessions_.NextDeadline()});
  }

  // --- administration
  // Apply and SetPolicy have the errors of LivePolicy::Apply and Start.
  absl::StatusOr<Effects> Apply(const PolicyChange& change, absl::Time now);
  absl::Status SetPolicy(const Policy& policy, absl::Time now) {
    return policy_.Start(policy, now);
  }
  // Ends every session of a job (of every principal, or only of `uid`) and
  // returns how many. Their memory is quarantined until the processes end. With
  // `kill` these processes are killed, and also the processes of the job's
  // sessions that ended before.
  struct Evicted {
    Effects effects;
    int sessions = 0;
    int processes = 0;  // how many are killed
  };
  Evicted Evict(const std::string& job, std::optional<uint32_t> uid, bool kill,
                const std::string& reason, absl::Time now);
  Effects ShutDown(const std::string& reason, absl::Time now);

  // --- reading
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
  const Leases& leases() const { return leases_; }
  const Copies& copies() const { return copies_; }
  absl::Time started() const { return started_; }

  // Returns the saved form (state.h).
  CoreState Save() const {
    return {ledger_.Save(), joint_.Save(),   sessions_.rows().rows(),
            last_session_,  policy_.drain(), line_.Save(),
            NamesOfGpus()};
  }
  // REQUIRES: a Core of the same node without sessions.
  void Load(CoreState saved);
  // Continues from what Load loaded (README.md). Sessions in `reached` kept
  // their sockets; the others have ended.
  Effects TakeOver(const std::set<SessionId>& reached, absl::Time now);
  // Records that all notices so far were sent, so a daemon that takes over need
  // not repeat them. Returns false if nothing changed.
  bool NoticesSent() { return sessions_.NoticesSent(); }
  // Calls visit(kind, key, row) (state.h) for each row changed since the last
  // call.
  void TakeChanged(auto visit) {
    EachTable([&](auto& table, const auto& save) {
      table.TakeChanged(
          [&](const auto& key, const auto* row) { save(key, row, visit); });
    });
    sessions_.TakeChanged(visit);
  }
  // Makes the next TakeChanged visit all rows; until then tracks no changes.
  void TouchAll() {
    EachTable([](auto& table, const auto&) { table.TouchAll(); });
    sessions_.TouchAll();
  }
  LooseState Loose() const;

  void CheckInvariants() const;

 private:
  GpuNames NamesOfGpus() const;
  void Repeat(Session& session, RequestId request, Effects& effects);
  void Dispatch(Session& session, RequestId request, const Request& body,
                absl::Time now, Effects& effects);
  void Attach(Session& session, RequestId request, const HelloRequest& hello,
              absl::Time now, Effects& effects);
  // Ends the session's leases; memory that the process may still map is
  // quarantined. The session stays until its process has ended.
  void Close(Session& session, absl::Time now, Effects& effects);
  void Drop(SessionId id, absl::Time now, Effects& effects) {
    ledger_.Gone(id, now, effects);
    sessions_.Drop(id, now);
    copies_.Forget(id);
    effects.push_back(Forget{id});
  }
  // Closes a session while its process lives. Drops closed sessions of the same
  // process, so that a process that opens sessions for ever keeps only one.
  void CloseAlone(Session& session, absl::Time now, Effects& effects);
  // Runs after each event: continues what the event made possible.
  void Settle(absl::Time now, Effects& effects) {
    joint_.Settle(now, effects);
    leases_.Release(now, effects);
    policy_.UseMeasured(effects);
    copies_.Promise(now, effects);
    sessions_.NotePlansTold(effects);
  }
  Effects Run(absl::Time now, auto event) {
    Effects effects;
    event(effects);
    Settle(now, effects);
    return effects;
  }
  // Handles the event that `host` bytes of host memory became free.
  Effects CameBack(Bytes host, absl::Time now) {
    return Run(now, [&](Effects&) {
      if (host > Bytes(0)) joint_.MemoryCameBack(now);
    });
  }
  // Visits every saved table except those that SessionTable visits.
  void EachTable(auto each) {
    ledger_.EachTable(each);
    joint_.EachTable(each);
    each(line_.rows(), SavedAs{RowKind::kWaiter});
  }

  // Fixed, except for measured link speeds.
  NodeConfig config_;
  const absl::Time started_;
  Journal journal_;
  SessionId last_session_;
  // Each member uses only those above it.
  SessionTable sessions_{config_, journal_};
  Ledger ledger_{config_};
  OutsideMemory outside_{config_, sessions_, ledger_, journal_};
  WaitingQueue line_;
  JointPlanning joint_{config_, ledger_, line_, journal_};
  LivePolicy policy_{config_, sessions_, ledger_, joint_, journal_};
  Leases leases_{config_, sessions_, ledger_, joint_, policy_, line_, journal_};
  Copies copies_{config_, sessions_, joint_, journal_};
};

}  // namespace sluice::daemon
