// What ranks report of their steps, and what they copy: summed up for their
// job and their GPU.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <map>

#include "absl/time/time.h"
#include "daemon/core/journal.h"
#include "daemon/core/late_copies.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"

namespace sluice::daemon {

class StepCounts {
 public:
  // All outlive it.
  StepCounts(const NodeConfig& config, SessionTable& sessions, Journal& journal)
      : config_(config), sessions_(sessions), journal_(journal) {}

  void Reported(Session& session, const StepReportRequest& report,
                absl::Time now);
  // Core::CopiesSeen, Core::LateSeen.
  void CopiesSeen(const std::map<int, Directions>& used);
  void LateSeen(const std::map<int, LateDirections>& late);
  LateDirections LateOf(SessionId session) const;
  void Forget(SessionId session) { late_.erase(session); }

 private:
  void CountCopies(Session& session);

  const NodeConfig& config_;
  SessionTable& sessions_;
  Journal& journal_;
  // What is counted of each rank's late copies. Not saved: the next daemon's
  // grants count anew.
  std::map<SessionId, LateDirections> late_;
};

}  // namespace sluice::daemon
