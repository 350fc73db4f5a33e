// The saved form of policy: plain data. A Core that loads it continues with the
// same effects as the Core that saved it. The form omits what follows from it
// (sums, lists by age and size), and what a new daemon starts without (solved
// units, events, counters). Profiles and plans are immutable and shared; ==
// compares them by address.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/effects.h"
#include "daemon/core/node/types.h"
#include "daemon/core/planning/plans.h"
#include "daemon/core/planning/replan.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool/held_outside.h"
#include "daemon/core/pool/pool.h"
#include "daemon/core/session.h"
#include "daemon/core/waiting.h"
#include "daemon/quota/allowance.h"

namespace sluice::daemon {

// The UUIDs of usable GPUs, since the next start may number GPUs differently.
using GpuNames = std::map<PoolId, std::string>;

// --- the ledger (ledger.h has the states)
struct LeaseState {
  enum class State { kMaking, kFailing, kGranted };
  State state = State::kMaking;
  SessionId session;
  RequestId request;
  PoolId pool;
  Bytes size;
  std::vector<Slice> slices;
  int making = 0;        // extents that the device is still making
  absl::Status failure;  // error of the first extent that failed
  absl::Time asked_at;
  bool operator==(const LeaseState&) const = default;
};

struct HolderState {
  enum class State { kOpen, kClosed };
  State state = State::kOpen;
  JobKey job;
  PrincipalId principal;
  std::set<LeaseId> leases;
  Amounts quarantined;  // charged to its job; lingers when the process ends
  bool operator==(const HolderState&) const = default;
};

// An extent that the device is making, and the lease that needs it; nullopt:
// the lease has ended.
struct MakingState {
  PoolId pool;
  std::optional<LeaseId> lease;
  bool operator==(const MakingState&) const = default;
};

// A lingering extent, charged to `job`.
struct LingeringState {
  // kFreed: the process that freed the extent, and its children, may reach it.
  // kOrphaned: only children of a process that has ended may.
  enum class Origin { kFreed, kOrphaned };
  Origin origin = Origin::kFreed;
  // kNotYet: the device was asked, but has not answered. kHeld: AskAgain asks
  // again. kUnknown: the device cannot tell.
  enum class Answer { kNotYet, kHeld, kUnknown };
  Answer answer = Answer::kNotYet;
  PoolId pool;
  JobKey job;
  bool operator==(const LingeringState&) const = default;
};

struct PrincipalState {
  PrincipalId id;
  // When its last process ended; InfiniteFuture while it has one.
  absl::Time alone_since = absl::InfiniteFuture();
  bool operator==(const PrincipalState&) const = default;
};

// The ledger's state outside of tables.
struct LedgerRest {
  uint64_t next_extent = 1, next_lease = 1, next_principal = 1;
  absl::Time ask_again_at = absl::InfiniteFuture();
  ExtentId asked_last;  // AskAgain continues after this extent
  HeldOutside outside;
  bool operator==(const LedgerRest&) const = default;
};

struct LedgerState : LedgerRest {
  std::map<PoolId, Pool::Saved> pools;
  Budgets::Saved budgets;
  Reservations reservations;
  std::map<LeaseId, LeaseState> leases;
  std::map<ExtentId, MakingState> making;
  std::map<SessionId, HolderState> holders;
  std::map<ExtentId, LingeringState> lingering;
  std::map<Principal, PrincipalState> principals;
  Allowances::Saved allowances;
  bool operator==(const LedgerState&) const = default;
};

// --- joint planning
struct AttachedRank {
  JobKey job;
  Rank rank;
  DeviceIndex gpu;
  int local_ranks = 1;
  bool operator==(const AttachedRank&) const = default;
};

// A lease that waits for a plan, as saved by version 1 of the state.
struct WaitingLease : Waiter {};

// A joining job with a plan that is held back until members free memory.
struct HeldJoin {
  Asking asking;
  PlanId plan;
  absl::Time since, deadline;
  bool operator==(const HeldJoin&) const = default;
};

// When and why running jobs will be planned again.
struct NextRound {
  // kRoundAfterChanges: a round is due when no member has a change, because a
  // join did not wait for memory that may still be freed.
  enum class Owed { kNothing, kRoundAfterChanges };
  Owed owed = Owed::kNothing;
  absl::Time at = absl::InfiniteFuture();
  std::string why;
  // The job that `why` is about. Other principals must not see its name.
  std::optional<JobKey> whose;
  bool operator==(const NextRound&) const = default;
};

struct JointPlanningState {
  std::map<SessionId, AttachedRank> attached;
  PlanRounds rounds;
  std::vector<Asking> joining;       // the next to be planned is first
  std::map<JobKey, Member> members;  // jobs that run by joint plans
  std::map<JobKey, HeldJoin> held;   // members with a plan that is held back
  NextRound next;
  bool operator==(const JointPlanningState&) const = default;
};

// --- row by row
// The kinds of rows. Core::TakeChanged calls visit(kind, key, row) for each row
// that changed; row is null if it was erased. The state outside of tables is
// LooseState.
enum class RowKind : char {
  kExtent = 'e',        // ExtentId, ExtentRow
  kLease = 'l',         // LeaseId, LeaseState
  kMaking = 'm',        // ExtentId, MakingState
  kHolder = 'h',        // SessionId, HolderState; without its leases
  kLingering = 'g',     // ExtentId, LingeringState
  kPrincipal = 'p',     // Principal, PrincipalState
  kAllowance = 'a',     // Principal, Allowances::Bucket
  kSession = 's',       // SessionId, Session; without its history
  kReply = 'r',         // SessionId and RequestId, std::optional<Reply>
  kMember = 'b',        // JobKey, Member
  kPlanInUse = 'u',     // JobKey, PlanRounds::Kept
  kPlanPromised = 'y',  // JobKey, PlanRounds::Kept
  kWaiter = 'w',        // PlaceInLine, Waiter
};

// Saves the rows of a table as they are. EachTable calls each(table, save) for
// each of its tables; save(key, row, visit) calls visit(kind, key, row).
struct SavedAs {
  RowKind kind;
  void operator()(const auto& key, const auto* row, auto& visit) const {
    visit(kind, key, row);
  }
};

struct ExtentRow {
  PoolId pool;
  Pool::Extent extent;
};

struct LooseState : LedgerRest {
  uint64_t next_round = 1, next_plan = 1, next_place = 1;
  SessionId last_session;  // the newest session so far
  std::map<PoolId, uint64_t> next_idle_order;
  // Set by version 1 only; later versions have rows of kWaiter.
  std::optional<std::vector<WaitingLease>> waiting_leases;
  NextRound next_joint;
  GpuNames gpus;
  bool operator==(const LooseState&) const = default;
};

struct CoreState {
  LedgerState ledger;
  JointPlanningState joint;
  std::map<SessionId, Session> sessions;
  SessionId last_session;
  std::optional<Drain> drain;
  WaitingQueue::Saved waiting;
  GpuNames gpus;
  bool operator==(const CoreState&) const = default;
};

}  // namespace sluice::daemon
