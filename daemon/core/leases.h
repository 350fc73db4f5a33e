// The leases of sessions: which requests are refused at once, which join the
// queue (waiting.h), when a queued request gets a turn, and how its wait ends.
// Answers, counts and logs what the ledger decides.
// Thread safety: one thread (core.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/joint_planning.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/live_policy.h"
#include "daemon/core/session_table.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/waiting.h"

namespace sluice::daemon {

class Leases {
 public:
  // All arguments must outlive this object.
  Leases(const NodeConfig& config, SessionTable& sessions, Ledger& ledger,
         JointPlanning& joint, const LivePolicy& policy, WaitingQueue& line,
         Journal& journal)
      : config_(config),
        sessions_(sessions),
        ledger_(ledger),
        joint_(joint),
        policy_(policy),
        line_(line),
        journal_(journal) {}

  void Ask(const Session& session, RequestId request, const LeaseRequest& asked,
           absl::Time now, Effects& effects);
  void GiveUp(Session& session, RequestId request,
              const GiveUpRequest& given_up, absl::Time now, Effects& effects);
  void Free(Session& session, RequestId request, const FreeRequest& asked,
            absl::Time now, Effects& effects);
  struct ExtentOutcome {
    ExtentId extent;
    absl::Status made;
  };
  void ExtentsMade(const std::vector<ExtentOutcome>& outcomes, absl::Time now,
                   Effects& effects);
  // Implements Core::GrantNotSent.
  void NotSent(SessionId id, LeaseId lease, const absl::Status& why,
               absl::Time now, Effects& effects);
  Reply Repeat(const Session& session, RequestId request) const;
  // Runs after each event: gives waiting leases their turn.
  void Release(absl::Time now, Effects& effects);
  // Logs how much jobs hold of each GPU that cannot be used any more.
  void NameHeldOfFaulty(absl::Time now);

  // Returns how much host memory `rank` may borrow now from `pool`, of a NUMA
  // node other than its GPU's: 0 unless all ranks of the machine belong to its
  // job, all local ranks of the job are attached, and none has its GPU on that
  // NUMA node. Half of the pool stays free for the next job.
  Bytes Borrowable(const Session& rank, PoolId pool) const;
  std::vector<WaitingSnapshot> Waiting(const Principal* viewer,
                                       absl::Time now) const;
  void CheckInvariants() const;

 private:
  // Takes a lease from the ledger. OK: the lease is granted, or will be
  // answered when it is made. The caller must answer a refusal.
  Refusal Take(const Waiter& lease, absl::Time now, Effects& effects);
  void Refuse(const Waiter& lease, const Refusal& refusal, absl::Time now,
              Effects& effects);
  void Decide(const Ledger::Decided& decided, absl::Time now, Effects& effects);
  void LogFailure(const Session& session, RequestId request,
                  const absl::Status& why, absl::Time now) {
    ++journal_.stats.leases_refused[RefusedBy::kDevice];
    journal_.LogOf(session, now, EventKind::kRefuse, std::string(why.message()),
                   request);
  }
  // Tells grants whether the session holds memory, after one of its leases
  // began, ended or failed.
  void TellHolding(const Session& session, Effects& effects) const;
  // Returns OK if `asked` is on the NUMA node of the session's GPU, or small
  // enough to be borrowed; otherwise a shortage of host memory.
  absl::Status CheckBorrowing(const Session& session,
                              const LeaseRequest& asked) const;
  Rights RightsOf(const Waiter& lease) const {
    const auto& [pool, size, wait] = lease.asked;
    return {.reserved = size <= ledger_.ReservedFor(pool, lease.job.principal),
            .promised = size <= joint_.DueOf(pool, lease.job)};
  }
  // Returns OK if a new request may pass all waiting leases; else why it must
  // stay behind one, or why it can never be granted.
  Refusal StaysBehind(const Waiter& lease, absl::Time now) const;
  // Gives a turn to leases that wait for plans. If no plan will free memory for
  // a lease, the lease joins the queue or is refused.
  void ReleaseForPlans(const Woken& woken, absl::Time now, Effects& effects);
  void WaitOrRefuse(Waiter lease, const Refusal& refusal, absl::Time now,
                    Effects& effects);
  WaitingQueue::Turn TakeTurn(const Waiter& waiter, absl::Time now,
                              Effects& effects);
  void TimeOut(const PlaceInLine& place, const Waiter& waiter, absl::Time now,
               Effects& effects);
  // Returns what the lease waits for, without names of other users' jobs.
  std::string WhyItWaits(const Waiter& lease,
                         const WaitingQueue::InFront& front,
                         absl::Time now) const;

  const NodeConfig& config_;
  SessionTable& sessions_;
  Ledger& ledger_;
  JointPlanning& joint_;
  const LivePolicy& policy_;
  WaitingQueue& line_;
  Journal& journal_;
  // Number of changes of each pool at the last Release.
  std::map<PoolId, uint64_t> changes_seen_;
};

}  // namespace sluice::daemon
