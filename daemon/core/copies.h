// What ranks copy: what their plans need of the links and what is promised of
// that (planning/demands.h), what they report of their steps, and which copies
// were late. Sums are counted for their job and their GPU.
//
// Promises follow from members and sessions, so they are not saved; nor are
// late copies, since the next daemon's grants count these anew.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/joint_planning.h"
#include "daemon/core/journal.h"
#include "daemon/core/late_copies.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"
#include "daemon/core/snapshot.h"

namespace sluice::daemon {

class Copies {
 public:
  // All outlive it.
  Copies(const NodeConfig& config, SessionTable& sessions,
         const JointPlanning& joint, Journal& journal)
      : config_(config),
        sessions_(sessions),
        joint_(joint),
        journal_(journal) {}

  // --- promises ------------------------------------------------------------
  // Null: its plan copies nothing, or it has none.
  const PlanCopies* PromisedTo(SessionId session) const {
    const auto found = promised_.find(session);
    return found != promised_.end() ? &found->second : nullptr;
  }
  // After each event: where plans or ranks have changed.
  void Promise(absl::Time now, Effects& effects);
  // After sessions and plans were loaded: nothing has to be told.
  void Load();
  // Tells grants what an earlier daemon promised, as it is for today's links.
  // `replanned`: these are others than plans were made for.
  void TakeOver(bool replanned, absl::Time now, Effects& effects);

  // --- what was copied -----------------------------------------------------
  void Reported(Session& session, const StepReportRequest& report,
                absl::Time now);
  // Core::CopiesSeen, Core::LateSeen.
  void Seen(const std::map<int, Directions>& used);
  void LateSeen(const std::map<int, LateDirections>& late);
  LateDirections LateOf(SessionId session) const {
    const auto late = late_.find(session);
    return late != late_.end() ? late->second : LateDirections{};
  }
  void Forget(SessionId session) { late_.erase(session); }

 private:
  std::map<SessionId, PlanCopies> CopiesOfPlans() const;
  void LogUnpromised(const Session& session, const PlanCopies& copies,
                     absl::Time now);
  void Count(Session& session);

  const NodeConfig& config_;
  SessionTable& sessions_;
  const JointPlanning& joint_;
  Journal& journal_;
  std::map<SessionId, PlanCopies> promised_;  // as of this version of demands
  uint64_t version_ = 0;
  std::map<SessionId, LateDirections> late_;  // as counted
};

}  // namespace sluice::daemon
