// The daemon's state at one moment, for people and metrics: plain data that can
// leave the loop's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/budget.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/node/types.h"
#include "daemon/core/policy.h"
#include "daemon/core/stats.h"
#include "daemon/core/waiting.h"
#include "daemon/quota/quotas.h"
#include "proto/plan/progress.h"

namespace sluice::daemon {

struct PoolSnapshot {
  PoolId id;
  Bytes total, leased, free, kept, quarantined, lingering;
  Bytes making;    // the part of `leased` that is still to be made
  Bytes outside;   // held outside leases (held_outside.h)
  Bytes ready;     // host memory: the part of `free` made ahead of leases
  Bytes reserved;  // the part of `free` that only some principals may have
  // Time of the device's answer about outside memory; InfinitePast: none yet.
  absl::Time outside_at = absl::InfinitePast();
};

struct GpuSnapshot {
  GpuConfig gpu;
  PoolSnapshot pool;
};

struct PlanCopies {
  PlanDemand demand;
  CopyRates promised = {0, 0};  // 0: the rank has its fair share
  bool operator==(const PlanCopies&) const = default;
};

struct RankSnapshot {
  Rank rank;
  int pid = 0;
  DeviceIndex gpu;
  SessionId session;
  Bytes gpu_bytes, host_bytes;  // leased
  bool closed = false;          // its socket ended, but its process lives
  double weight = 1;            // in fair shares
  std::optional<PlanCopies> plan_copies;
  std::optional<StepReport> step;
  double stall_seconds = 0, grant_wait_seconds = 0;
  LateDirections late;  // since this daemon took the session up
  Bytes hbm_peak;
  std::optional<Bytes> outside;  // Session::outside
};

struct JobSnapshot {
  std::string name;
  Principal principal;
  int world_size = 0;
  std::vector<RankSnapshot> ranks;
  PlanId plan;  // 0: none
};

struct PlanSnapshot {
  std::string job;
  Principal principal;
  std::shared_ptr<const plan::NodePlan> plan;
};

// A plan that is being made, or a new plan that ranks have not all taken yet.
struct PlanningSnapshot {
  enum class State {
    kCollecting,  // `ranks` of `wanted` have submitted
    kQueued,      // waits until another round has ended
    kSolving,
    // A finished plan waits until the jobs in `waiting_for` free memory, or a
    // lease does; `plan` and `ranks` are not set for a lease.
    kWaiting,
    kChanging,  // `ranks` of `wanted` have taken `plan`
  };
  std::string job;
  Principal principal;
  int ranks = 0, wanted = 0;
  State state = State::kCollecting;
  absl::Duration elapsed;  // in this state; 0 for kCollecting and kQueued
  std::optional<absl::Duration> left;    // until its deadline, if it has one
  std::vector<std::string> waiting_for;  // jobs
  PlanId plan;
  std::optional<plan::PlanProgress> progress;  // unset: no report yet
};

struct WaitingSnapshot {
  Waiter lease;
  Rank rank;
  int in_front = 0;  // earlier leases that wait for its pool or user
  absl::Duration elapsed, left;
};

// A process without a session that holds memory of the node's pools.
struct HolderSnapshot {
  int pid = 0;
  uint32_t uid = 0;
  std::string command;  // the name that the process gives itself
  Bytes gpu, host;
};

// Where the metrics server listens.
struct TcpListener {
  std::string address;   // "127.0.0.1:9435"; empty: nowhere
  std::string fault;     // why it does not listen there; empty: it listens
  bool goes_on = false;  // it has the earlier daemon's socket
};

struct Snapshot {
  std::string hostname;
  std::string driver;
  uint64_t generation = 0;
  absl::Duration uptime;
  absl::Time now;
  std::vector<GpuSnapshot> gpus;
  std::vector<PoolSnapshot> hosts;
  // Time of the device's answer about outside memory; InfinitePast: none yet.
  absl::Time outside_at = absl::InfinitePast();
  std::vector<LinkSpeed> links;
  std::optional<MeasuredLinks> measured;
  bool measured_waits = false;  // it is not applied yet
  std::vector<JobSnapshot> jobs;
  std::vector<BudgetLine> budgets;
  std::vector<LimitLine> limits;
  std::vector<ReservationLine> reservations;
  std::optional<Drain> drain;
  std::vector<PlanSnapshot> plans;
  std::vector<PlanningSnapshot> planning;
  std::vector<WaitingSnapshot> waiting;  // in the order of the queue
  std::vector<LoggedEvent> events;
  // All events from this number on are kept; 0 if none is kept.
  uint64_t events_from = 0;
  int sessions = 0, half_open = 0;
  size_t extents = 0;
  // The service, not policy, fills in the fields from here to `quotas`.
  uint64_t log_lines_dropped = 0, log_lines_suppressed = 0;
  size_t descriptors_closing = 0;  // from clients, not closed yet
  // The kind of pinned host memory ("HOST_NUMA", "memfd"), and why the better
  // kind is not used. Empty: there is only one kind (sim).
  std::string host_memory, host_memory_why;
  // Whether jobs keep their memory if this daemon ends; unset if it was started
  // without a descriptor store.
  std::optional<bool> kept;
  TcpListener http;
  // Processes that hold memory they did not release, if the device knows them
  // (sim). Memory that two processes share counts for both.
  std::vector<HolderSnapshot> holders;
  // How often the heartbeat was so late that ranks ran without grants, although
  // the daemon was alive.
  uint64_t grant_stale_periods = 0;
  QuotasSnapshot quotas;
  // Set only in a complete snapshot (no viewer).
  std::optional<Stats> stats;
};

class Core;
class Ledger;
// Returns what `viewer` may see, or everything, with statistics, if it is null.
Snapshot SnapshotOf(const Core& core, const Principal* viewer, absl::Time now);
PoolSnapshot SnapshotOf(const Ledger& ledger, PoolId id);

}  // namespace sluice::daemon
