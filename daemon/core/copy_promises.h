// What each rank's plan copies, and what of that its links promise
// (planning/demands.h). It follows from members and sessions, so it is not
// saved.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/planning/joint_planning.h"
#include "daemon/core/session_table.h"
#include "daemon/core/snapshot.h"

namespace sluice::daemon {

class CopyPromises {
 public:
  // All outlive it.
  CopyPromises(const NodeConfig& config, const SessionTable& sessions,
               const JointPlanning& joint, Journal& journal)
      : config_(config),
        sessions_(sessions),
        joint_(joint),
        journal_(journal) {}

  // Null: its plan copies nothing, or it has none.
  const PlanCopies* Of(SessionId session) const;
  // After each event: where plans or ranks have changed.
  void Renew(absl::Time now, Effects& effects);
  // After sessions and plans were loaded: nothing has to be told.
  void Load();
  // Tells grants what an earlier daemon promised, as it is for today's links.
  // `replanned`: these are others than plans were made for.
  void TakeOver(bool replanned, absl::Time now, Effects& effects);

 private:
  std::map<SessionId, PlanCopies> CopiesOfPlans() const;
  void LogUnpromised(const Session& session, const PlanCopies& copies,
                     absl::Time now);

  const NodeConfig& config_;
  const SessionTable& sessions_;
  const JointPlanning& joint_;
  Journal& journal_;
  std::map<SessionId, PlanCopies> copies_;  // as of this version of demands
  uint64_t version_ = 0;
};

}  // namespace sluice::daemon
