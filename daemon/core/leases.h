// The leases of sessions. Answers, counts and logs what the ledger decides.
// Thread safety: one thread (core.h).
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/live_policy.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"
#include "daemon/core/waiting.h"

namespace sluice::daemon {

class Leases {
 public:
  // All arguments must outlive this object.
  Leases(SessionTable& sessions, Ledger& ledger, const LivePolicy& policy,
         Journal& journal)
      : sessions_(sessions),
        ledger_(ledger),
        policy_(policy),
        journal_(journal) {}

  // Takes a lease from the ledger. OK: the lease is granted or being made, and
  // its request is answered when that is done. The caller must answer a
  // refusal.
  Refusal Take(const Waiter& lease, absl::Time now, Effects& effects);
  void Refuse(const Waiter& lease, const Refusal& refusal, absl::Time now,
              Effects& effects);
  void Free(Session& session, RequestId request, const FreeRequest& asked,
            absl::Time now, Effects& effects);
  struct ExtentOutcome {
    ExtentId extent;
    absl::Status made;
  };
  void ExtentsMade(const std::vector<ExtentOutcome>& outcomes, absl::Time now,
                   Effects& effects);
  // See Core::GrantNotSent.
  void NotSent(SessionId id, LeaseId lease, const absl::Status& why,
               absl::Time now, Effects& effects);
  // Returns the answer to a repeated request.
  Reply Repeat(const Session& session, RequestId request) const;
  // Logs which memory jobs hold of GPUs that cannot be used any more.
  void NameHeldOfFaulty(const NodeConfig& config, absl::Time now);

 private:
  void Decide(const Ledger::Decided& decided, absl::Time now, Effects& effects);
  // Tells grants whether the session holds memory, after one of its leases
  // began, ended or failed.
  void TellHolding(const Session& session, Effects& effects) const;

  SessionTable& sessions_;
  Ledger& ledger_;
  const LivePolicy& policy_;
  Journal& journal_;
};

}  // namespace sluice::daemon
