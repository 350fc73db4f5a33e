// The copies of ranks: the bandwidth that their plans need and how much of it
// is promised (planning/demands.h), the bytes that they have copied, and late
// copies. Sums are counted per job and per GPU.
//
// This object is not saved: promises are computed from members and sessions,
// and late copies count from zero in the next daemon's grants. Thread safety:
// one thread (core.h).
#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/joint_planning.h"
#include "daemon/core/journal.h"
#include "daemon/core/session_table.h"
#include "daemon/core/snapshot.h"
#include "proto/base/find.h"

namespace sluice::daemon {

class Copies {
 public:
  // All arguments must outlive this object.
  Copies(const NodeConfig& config, SessionTable& sessions,
         const JointPlanning& joint, Journal& journal)
      : config_(config),
        sessions_(sessions),
        joint_(joint),
        journal_(journal) {}

  // --- promises
  // Returns what the rank's plan copies and what is promised of that; null if
  // the rank runs by no plan.
  const PlanCopies* PromisedTo(SessionId session) const {
    return FindOrNull(promised_, session);
  }
  // Recomputes promises, after an event that may have changed plans or ranks.
  void Promise(absl::Time now, Effects& effects);
  // Computes promises without effects. REQUIRES: sessions and plans are loaded.
  void Load() {
    promised_ = CopiesOfPlans();
    version_ = joint_.demands_version();
  }
  // Recomputes promises for the current links and sends all of them to grants.
  // `replanned`: the links differ from those that plans were made for.
  void TakeOver(bool replanned, absl::Time now, Effects& effects) {
    promised_ = CopiesOfPlans();
    SendChanges({}, replanned, now, effects);
  }

  // --- what was copied
  void Reported(Session& session, const StepReportRequest& report,
                absl::Time now);
  // Implements Core::CopiesSeen.
  void Seen(const std::map<int, Directions>& used,
            const std::map<int, LateDirections>& late);
  LateDirections LateOf(SessionId session) const {
    return FindOr(late_, session);
  }
  void Forget(SessionId session) { late_.erase(session); }

 private:
  std::map<SessionId, PlanCopies> CopiesOfPlans() const;
  void SendChanges(const std::map<SessionId, PlanCopies>& before, bool logs,
                   absl::Time now, Effects& effects);
  void LogUnpromised(const Session& session, const PlanCopies& copies,
                     absl::Time now);
  void Count(Session& session);

  const NodeConfig& config_;
  SessionTable& sessions_;
  const JointPlanning& joint_;
  Journal& journal_;
  std::map<SessionId, PlanCopies> promised_;
  uint64_t version_ = 0;  // of the demands that promised_ follows from
  std::map<SessionId, LateDirections> late_;  // sums that Stats includes
};

}  // namespace sluice::daemon
