// A rank's session with the node's daemon: lease, map, plan, events. The
// session is its socket: when the process ends, in any way, the daemon reclaims
// what the session held. Forked children and core dumps do not get its memory.
// Thread safety: Session is thread-safe; a Region belongs to one owner.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/copy/grant_gate.h"
#include "kernels/device/driver.h"
#include "proto/base/step_report.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::client {

struct SessionOptions {
  std::string socket;  // empty: DefaultSocket()
  std::string job = "default";
  Rank rank;
  int world_size = 1;
  int local_ranks = 1;
  DeviceIndex gpu;
  // Used instead of `gpu` if set. CUDA_VISIBLE_DEVICES does not affect a UUID.
  std::string gpu_uuid;
  // How long a lease may wait for memory; zero: not at all. Leases are served
  // in order, but smaller leases may pass this one in the first half of its
  // wait. The daemon's longest_wait_s limits the wait. DeadlineExceeded names
  // the first lease in the queue.
  absl::Duration lease_wait = absl::ZeroDuration();
  // How long the daemon may be silent about a lease. The progress that it sends
  // while it makes memory restarts this time.
  absl::Duration answer_timeout = absl::Seconds(60);
  // If false, the session answers every changed plan with "not taken".
  bool takes_changes = true;
};

// One or more leases, mapped as one range. The destructor unmaps and frees
// them. A region may outlive its session; the session's end gives the leases
// back.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual Bytes size() const = 0;
};

struct SessionEvent {
  enum class Kind {
    kPeerDied,  // detail: "rank 1 of job demo: killed by signal 9"
    kEvicted,
    kShuttingDown,
    kDisconnected,  // the daemon is gone; running steps continue
    kPlanChanged,   // ChangedPlan() returns the new plan
  };
  Kind kind;
  std::string detail;
};

// The node's limits at Open. MeasureOutside updates the GPU's limits.
struct NodeLimits {
  std::string driver;  // "sim", "cuda"
  // The session's GPU as this process (CUDA_VISIBLE_DEVICES) numbers it.
  DeviceIndex device;
  // The session's GPU, without memory held outside leases.
  Bytes gpu_total, gpu_free;
  Bytes gpu_leased;  // by all sessions
  // The GPU's NUMA node. With one local rank, host_free includes other nodes.
  Bytes host_total, host_free;
  Bytes granularity;  // of leases
  NumaIndex numa;
  double h2d_bytes_per_second = 0;
  double d2h_bytes_per_second = 0;
};

class Session {
 public:
  // NotFound, Unavailable: no daemon listens at the socket; the message states
  // what to do. InvalidArgument: an option has a value that no daemon accepts.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const SessionOptions& options);
  virtual ~Session() = default;

  virtual NodeLimits limits() const = 0;
  virtual device::Driver& driver() = 0;
  virtual GrantGate& grants() = 0;

  // Reports the GPU's use to the daemon, because libraries may have taken
  // memory after Open. Later leases leave room for it, and limits() returns
  // what remains. Does nothing on sim.
  virtual absl::Status MeasureOutside() = 0;

  // Leases `size`, rounded up to limits().granularity. A host lease may be
  // larger by less than an extent, and takes from other NUMA nodes what the
  // GPU's node lacks. ResourceExhausted: over budget or the pool is empty.
  // Unavailable: the daemon is gone. `wait` replaces the options' lease_wait.
  using Wait = std::optional<absl::Duration>;
  virtual absl::StatusOr<std::unique_ptr<Region>> LeaseGpu(Bytes size,
                                                           Wait wait = {}) = 0;
  virtual absl::StatusOr<std::unique_ptr<Region>> LeaseHost(Bytes size,
                                                            Wait wait = {}) = 0;

  // Sends the profile, and waits until all local ranks of the job have sent
  // theirs and the daemon's worker has solved. An infeasible plan is an answer
  // and not an error. DeadlineExceeded: `timeout` passed. Unavailable: the
  // daemon is gone, or a peer died. FailedPrecondition: the worker failed, or a
  // peer left. Faults that a peer caused are marked (proto/base/peer_fault.h).
  virtual absl::StatusOr<plan::NodePlan> Plan(const plan::RankProfile& profile,
                                              absl::Duration timeout) = 0;

  // Returns the newest unanswered plan that the daemon made because the set of
  // jobs changed, or null. A rank that takes the plan's fractions, at a step
  // boundary, records a step with them and calls Plan with a settled profile.
  virtual std::shared_ptr<const plan::NodePlan> ChangedPlan() = 0;
  // Answers a changed plan; does not wait. The daemon awaits the answer, so a
  // rank that never calls ChangedPlan must set `takes_changes` to false. `note`
  // is one line for people; its first 512 bytes are sent, as UTF-8.
  virtual absl::Status AnswerChange(PlanId plan, bool taken,
                                    const std::string& note) = 0;

  // Reports a step; does not wait. Unavailable, ResourceExhausted: the report
  // is not sent, and the next one includes its counts. InvalidArgument: a
  // figure is impossible; nothing is counted.
  virtual absl::Status Report(const StepReport& report) = 0;

  // Sets the handler, which runs on the session's own thread and must not call
  // back. First delivers the events that arrived while no handler was set.
  // When OnEvent returns, the previous handler is no longer running.
  using EventHandler = std::function<void(const SessionEvent&)>;
  virtual void OnEvent(EventHandler handler) = 0;
};

struct GpuState {
  DeviceIndex index;
  std::string uuid;
  NumaIndex numa;
  Bytes total, leased;  // excluding memory held outside leases
  // Includes memory that processes of ended sessions still hold.
  Bytes available() const { return total - leased; }
};
// Asks the daemon as an observer for the GPUs of its node. Errors are those of
// Session::Open.
absl::StatusOr<std::vector<GpuState>> ListGpus(const std::string& socket);
// Returns whether a daemon listens at the socket (empty: DefaultSocket()).
bool DaemonListens(const std::string& socket);

struct NodeStatus {
  std::string json;                    // keys: daemon/README.md
  std::optional<plan::NodePlan> plan;  // set if a plan was asked for
};
// Asks the daemon (empty: DefaultSocket()) as an observer, also for the plan
// `plan_id` unless it is empty. The daemon's own user sees everything unless it
// is root; another user sees what it owns. Errors: those of Session::Open, and
// NotFound: no such plan, or another user's. Thread safety: safe.
absl::StatusOr<NodeStatus> QueryNode(const std::string& socket,
                                     const std::string& plan_id = "");

// Returns $SLUICE_SOCKET, else /run/sluice/session.sock.
std::string DefaultSocket();

}  // namespace sluice::client
