// The saved form of policy: plain data that says everything the ledger, joint
// planning and the sessions know. A Core that loads what another saved goes on
// with the same effects.
//
// What can be computed from it is not in it (sums, lists by age and size), nor
// what a new daemon begins anew (planned units, events, counters). Profiles and
// plans are immutable and shared; here they are the same when they are the same
// object.
//
// Thread safety: values.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/budget.h"
#include "daemon/core/node/types.h"
#include "daemon/core/planning/plans.h"
#include "daemon/core/planning/replan.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool/held_outside.h"
#include "daemon/core/pool/pool.h"
#include "daemon/core/requests.h"
#include "daemon/core/reservations.h"
#include "daemon/core/session.h"
#include "daemon/core/waiting.h"
#include "daemon/quota/allowance.h"
#include "proto/plan/request.h"

namespace sluice::daemon {

// The UUIDs of the GPUs that could be used: another start may number them
// otherwise.
using GpuNames = std::map<PoolId, std::string>;

// --- the ledger (ledger.h draws the states) ---------------------------------
struct LeaseState {
  enum class State { kMaking, kFailing, kGranted };
  State state = State::kMaking;
  SessionId session;
  RequestId request;
  PoolId pool;
  Bytes size;
  std::vector<Slice> slices;
  int making = 0;        // extents still asked of the device
  absl::Status failure;  // of the first extent that could not be made
  absl::Time asked_at;
  bool operator==(const LeaseState&) const = default;
};

struct HolderState {
  enum class State { kOpen, kClosed };
  State state = State::kOpen;
  JobKey job;
  PrincipalId principal;
  std::set<LeaseId> leases;
  Amounts quarantined;  // charged to its job until the process is gone
  bool operator==(const HolderState&) const = default;
};

// An extent asked of the device, and the lease that waits for it; nullopt: that
// ended meanwhile.
struct MakingState {
  PoolId pool;
  std::optional<LeaseId> lease;
  bool operator==(const MakingState&) const = default;
};

// A lingering extent, charged to `job`.
struct LingeringState {
  // What may reach it: the process that freed it (or a child), or only a child
  // of a process that is gone.
  enum class Origin { kFreed, kOrphaned };
  Origin origin = Origin::kFreed;
  // What the device said last; unknown: it never says.
  enum class Answer { kNotYet, kHeld, kUnknown };
  Answer answer = Answer::kNotYet;
  PoolId pool;
  JobKey job;
  bool operator==(const LingeringState&) const = default;
};

// One of whom there is a holder or an extent.
struct PrincipalState {
  PrincipalId id;
  // Since when it has no process; InfiniteFuture: it has one.
  absl::Time alone_since = absl::InfiniteFuture();
  bool operator==(const PrincipalState&) const = default;
};

// What the ledger keeps besides tables.
struct LedgerRest {
  uint64_t next_extent = 1, next_lease = 1, next_principal = 1;
  absl::Time ask_again_at = absl::InfiniteFuture();
  ExtentId asked_last;  // of those that are asked about again, in their order
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

// --- joint planning ---------------------------------------------------------
// A rank as planning knows it.
struct AttachedRank {
  JobKey job;
  Rank rank;
  DeviceIndex gpu;
  int local_ranks = 1;
  bool operator==(const AttachedRank&) const = default;
};

// A lease that waits for a plan, as version 1 of the state (daemon/state) saved
// it.
struct WaitingLease {
  SessionId session;
  RequestId request;
  LeaseRequest asked;
  absl::Time since, deadline;
  bool operator==(const WaitingLease&) const = default;
};

// A join that has its plan, until members gave back what it needs.
struct HeldJoin {
  Asking asking;
  PlanId plan;
  absl::Time since, deadline;
  bool operator==(const HeldJoin&) const = default;
};

// When running jobs are planned again, and why.
struct NextRound {
  // Whether a round is due once no member changes any more: a join did not
  // wait for memory that may still come.
  enum class Owed { kNothing, kRoundAfterChanges };
  Owed owed = Owed::kNothing;
  absl::Time at = absl::InfiniteFuture();
  std::string why;
  std::optional<JobKey> whose;  // names a job not all may read of
  bool operator==(const NextRound&) const = default;
};

struct JointPlanningState {
  std::map<SessionId, AttachedRank> attached;
  PlanRounds::Saved rounds;
  std::vector<Asking> joining;       // jobs that ask, in their order
  std::map<JobKey, Member> members;  // jobs that run by the planner's fractions
  std::map<JobKey, HeldJoin> held;   // members with a plan that is held back
  // What the question has that is being solved for all jobs together.
  std::vector<Position> positions;
  plan::NodeResources resources;
  NextRound next;
  bool operator==(const JointPlanningState&) const = default;
};

// --- row by row -------------------------------------------------------------
// What a core saves is rows of tables, and what is in none. Core::TakeChanged
// calls visit(kind, key, row) for each row that changed, row null where it is
// gone.
enum class RowKind : char {
  kExtent = 'e',        // ExtentId, ExtentRow
  kLease = 'l',         // LeaseId, LeaseState
  kMaking = 'm',        // ExtentId, MakingState
  kHolder = 'h',        // SessionId, HolderState; its leases name it
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

// How a table's rows are saved where they are saved as they are. An owner of
// tables calls each(table, save) for each of them; save(key, row, visit) calls
// visit(kind, key, row).
struct SavedAs {
  RowKind kind;
  template <typename Key, typename Row, typename Visit>
  void operator()(const Key& key, const Row* row, Visit& visit) const {
    visit(kind, key, row);
  }
};

struct ExtentRow {
  PoolId pool;
  Pool::Extent extent;
};

struct LooseState : LedgerRest {
  uint64_t next_round = 1, next_plan = 1, next_place = 1;
  SessionId last_session;  // that ever connected
  std::map<PoolId, uint64_t> next_idle_order;
  // Set by version 1 only; they have rows of kWaiter since.
  std::optional<std::vector<WaitingLease>> waiting_leases;
  NextRound next_joint;
  GpuNames gpus;
  bool operator==(const LooseState&) const = default;
};

// --- all of it --------------------------------------------------------------
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
