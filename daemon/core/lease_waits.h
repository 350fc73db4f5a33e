// Handles lease requests: which are refused at once, which join the queue
// (waiting.h), when they get a turn, and how their wait ends.
// Thread safety: one thread (core.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/joint_planning.h"
#include "daemon/core/journal.h"
#include "daemon/core/leases.h"
#include "daemon/core/ledger.h"
#include "daemon/core/live_policy.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/waiting.h"

namespace sluice::daemon {

class LeaseWaits {
 public:
  // All arguments must outlive this object.
  LeaseWaits(const NodeConfig& config, const SessionTable& sessions,
             Ledger& ledger, JointPlanning& joint, const LivePolicy& policy,
             Leases& leases, WaitingQueue& line, Journal& journal)
      : config_(config),
        sessions_(sessions),
        ledger_(ledger),
        joint_(joint),
        policy_(policy),
        leases_(leases),
        line_(line),
        journal_(journal) {}

  void Ask(const Session& session, RequestId request, const LeaseRequest& asked,
           absl::Time now, Effects& effects);
  void GiveUp(Session& session, RequestId request,
              const GiveUpRequest& given_up, absl::Time now, Effects& effects);
  // Runs after each event: gives waiting leases their turn.
  void Release(absl::Time now, Effects& effects);

  // Returns how much host memory `rank` may borrow now on a NUMA node other
  // than its GPU's: 0 unless all ranks of the machine belong to its job, all
  // local ranks of the job are attached, and none is on that node. Half of the
  // node's pool stays free for the next job.
  Bytes Borrowable(const Session& rank, PoolId pool) const;

  std::vector<WaitingSnapshot> Waiting(const Principal* viewer,
                                       absl::Time now) const;
  void CheckInvariants() const;

 private:
  // Returns OK if `asked` is on the NUMA node of the session's GPU, or small
  // enough to be borrowed; otherwise ResourceExhausted, marked as a shortage of
  // host memory.
  absl::Status CheckBorrowing(const Session& session,
                              const LeaseRequest& asked) const;
  Rights RightsOf(const Waiter& lease) const;
  // Returns OK if a new request may pass all waiting leases; else why it must
  // stay behind one, or why it can never be granted.
  Refusal StaysBehind(const Waiter& lease, absl::Time now) const;
  Woken TakeWoken();
  // Gives a turn to leases that wait for plans. If no plan will free memory for
  // a lease, the lease joins the queue or is refused.
  void ReleaseForPlans(const Woken& woken, absl::Time now, Effects& effects);
  // Queues the lease if it may wait; refuses it otherwise.
  void WaitOrRefuse(Waiter lease, const Refusal& refusal, absl::Time now,
                    Effects& effects);
  WaitingQueue::Turn TakeTurn(const Waiter& waiter, absl::Time now,
                              Effects& effects);
  void TimeOut(const PlaceInLine& place, const Waiter& waiter, absl::Time now,
               Effects& effects);
  // Returns what the lease waits for, in words that its job may read.
  std::string WhyItWaits(const Waiter& lease,
                         const WaitingQueue::InFront& front,
                         absl::Time now) const;

  const NodeConfig& config_;
  const SessionTable& sessions_;
  Ledger& ledger_;
  JointPlanning& joint_;
  const LivePolicy& policy_;
  Leases& leases_;
  WaitingQueue& line_;
  Journal& journal_;
  // Number of changes of each pool at the last TakeWoken.
  std::map<PoolId, uint64_t> changes_seen_;
};

}  // namespace sluice::daemon
