// Applies what administrators set while the daemon runs (policy.h). Measured
// links apply as soon as no rank is attached, because ranks' promises and plans
// were made for the former links.
// Thread safety: one thread (core.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/joint_planning.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/policy.h"
#include "daemon/core/session_table.h"

namespace sluice::daemon {

class LivePolicy {
 public:
  // All arguments must outlive this object, which replaces the links in
  // `config` by measured ones.
  LivePolicy(NodeConfig& config, const SessionTable& sessions, Ledger& ledger,
             const JointPlanning& joint, Journal& journal)
      : config_(config),
        configured_links_(config.links),
        sessions_(sessions),
        ledger_(ledger),
        joint_(joint),
        journal_(journal) {}

  Policy policy() const {
    return {ledger_.budgets().Live(), ledger_.reservations(), drain_,
            measured_};
  }
  // Returns the policy with `change`, or why it is refused: the errors of
  // Budgets::Set, Ledger::MayReserve and CheckMeasured; FailedPrecondition if
  // there is no drain to end, or no measurement to forget.
  absl::StatusOr<Policy> With(const PolicyChange& change, absl::Time now) const;
  // Applies the change; errors as in With.
  absl::Status Apply(const PolicyChange& change, absl::Time now);
  // Applies the policy that an earlier daemon kept. REQUIRES: no session yet.
  // InvalidArgument: it reserves more than this node has.
  absl::Status Start(const Policy& policy, absl::Time now);
  // Applies measured links that wait, if no rank is attached.
  void UseMeasured(Effects& effects);

  const std::optional<Drain>& drain() const { return drain_; }
  void Load(std::optional<Drain> drain) { drain_ = std::move(drain); }
  // Returns the reason for granting nothing; OK if the node is not drained.
  absl::Status CheckDrain() const;
  const std::optional<MeasuredLinks>& measured() const { return measured_; }
  // Returns whether measured links are not applied yet.
  bool measured_waits() const { return links_wait_; }

 private:
  // Changes `policy`; returns the text for the log.
  absl::StatusOr<std::string> Change(const PolicyChange& change, absl::Time now,
                                     Policy& policy) const;
  void Enforce(const Policy& policy);

  NodeConfig& config_;
  const std::vector<LinkSpeed> configured_links_;
  const SessionTable& sessions_;
  Ledger& ledger_;
  const JointPlanning& joint_;
  Journal& journal_;
  std::optional<Drain> drain_;
  std::optional<MeasuredLinks> measured_;
  bool links_wait_ = false;
};

}  // namespace sluice::daemon
