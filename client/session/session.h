// A rank's session with the node's daemon: lease, map, plan, events.
//
// The session is its socket: when the process ends, in any way, the daemon
// reclaims everything that the session held. Memory is mapped MADV_DONTFORK and
// MADV_DONTDUMP: a forked child does not inherit it, and a core dump does not
// contain it.
//
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
  // The GPU's UUID, used instead of its number, which CUDA_VISIBLE_DEVICES may
  // change. Empty: `gpu` is used.
  std::string gpu_uuid;
  // How long a lease may wait for memory. At zero it is refused at once if
  // there is no room. Leases are served in order, but smaller ones may pass in
  // the first half of the wait. The daemon's longest_wait_s and its number of
  // waiting leases are upper limits. When the wait ends with DeadlineExceeded,
  // the message names the first lease in the queue.
  absl::Duration lease_wait = absl::ZeroDuration();
  // How long the daemon may be silent about a lease that it neither grants nor
  // refuses. While the daemon makes memory it sends progress, which restarts
  // this time.
  absl::Duration answer_timeout = absl::Seconds(60);
  // If false, the session answers every changed plan with "not taken".
  bool takes_changes = true;
};

// One or more leases, mapped as one contiguous range. Unmaps and frees them on
// destruction. The region may outlive its session; the session's end
// gives the leases back.
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
    kPlanChanged,   // ChangedPlan() returns it
  };
  Kind kind;
  std::string detail;
};

// The node's limits as the daemon stated them at Open. MeasureOutside updates
// those of the GPU.
struct NodeLimits {
  std::string driver;  // "sim", "cuda"
  // The session's GPU by this process's numbering, which CUDA_VISIBLE_DEVICES
  // may change. Driver and CopyEngine expect it.
  DeviceIndex device;
  // The session's GPU, excluding memory held outside leases.
  Bytes gpu_total, gpu_free;
  Bytes gpu_leased;  // by all sessions
  // Host memory of the GPU's NUMA node. If the job has one local rank,
  // host_free includes memory of other nodes.
  Bytes host_total, host_free;
  Bytes granularity;  // of leases
  NumaIndex numa;
  double h2d_bytes_per_second = 0;
  double d2h_bytes_per_second = 0;
};

class Session {
 public:
  // NotFound, Unavailable: no daemon listens at the socket; the message states
  // what to do. InvalidArgument: no daemon would accept an option.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const SessionOptions& options);
  virtual ~Session() = default;

  virtual NodeLimits limits() const = 0;
  virtual device::Driver& driver() = 0;
  virtual GrantGate& grants() = 0;

  // Reports to the daemon how much of the session's GPU is used, because
  // libraries of this process may have taken memory after Open. Later leases
  // leave room for that memory, and limits() returns what remains. Does nothing
  // on sim.
  virtual absl::Status MeasureOutside() = 0;

  // Lease `size`, rounded up to limits().granularity. A host lease may be
  // larger by less than an extent, and takes from other NUMA nodes what the
  // GPU's node lacks. ResourceExhausted: over budget or the pool is empty; the
  // message has the requested, free and allowed bytes and a remedy.
  // Unavailable: the daemon is gone. A set `wait` replaces
  // SessionOptions::lease_wait.
  using Wait = std::optional<absl::Duration>;
  virtual absl::StatusOr<std::unique_ptr<Region>> LeaseGpu(Bytes size,
                                                           Wait wait = {}) = 0;
  virtual absl::StatusOr<std::unique_ptr<Region>> LeaseHost(Bytes size,
                                                            Wait wait = {}) = 0;

  // Sends the profile, and waits until all local ranks of the job have sent
  // theirs and the daemon's worker has solved. Daemon and client both validate
  // the plan. An infeasible plan is an answer and not an error.
  // DeadlineExceeded: `timeout` passed. Unavailable: the daemon is gone, or a
  // peer died. FailedPrecondition: the worker failed, with its reason, or a
  // peer left. Faults that a peer caused are marked (proto/base/peer_fault.h).
  virtual absl::StatusOr<plan::NodePlan> Plan(const plan::RankProfile& profile,
                                              absl::Duration timeout) = 0;

  // Returns the newest unanswered plan that the daemon made because the set of
  // jobs changed, or null. The rank should use the plan from its next step
  // boundary on. Only the plan's fractions count: a rank that takes it records
  // again and calls Plan with a settled profile.
  virtual std::shared_ptr<const plan::NodePlan> ChangedPlan() = 0;
  // Answers a changed plan: the rank takes it, or continues with its current
  // plan. The daemon waits for the answer, so a rank that never calls
  // ChangedPlan must set `takes_changes` to false. The session itself answers a
  // plan that it cannot read. `note` is one line for people; its first 512
  // bytes are sent, with '?' in place of bytes that are not UTF-8. Does not
  // wait.
  virtual absl::Status AnswerChange(PlanId plan, bool taken,
                                    const std::string& note) = 0;

  // Reports a step; does not wait. Unavailable, ResourceExhausted: the daemon
  // is not reading; the next report that is sent includes this one's counts.
  // InvalidArgument: a figure is impossible for a step; nothing is counted.
  virtual absl::Status Report(const StepReport& report) = 0;

  // Sets the handler, which runs on the session's own thread and must not call
  // back into the session. OnEvent first delivers the events that arrived
  // before any handler was set. When OnEvent returns, the previous handler is
  // no longer running.
  using EventHandler = std::function<void(const SessionEvent&)>;
  virtual void OnEvent(EventHandler handler) = 0;
};

// Returns the GPUs of the daemon's node in their order, for choosing
// SessionOptions::gpu. Connects as an observer, so no rank joins a job. Errors
// are those of Session::Open.
struct GpuState {
  DeviceIndex index;
  std::string uuid;
  NumaIndex numa;
  Bytes total, leased;  // excluding memory held outside leases
  // Includes memory that the process of a dead job still holds, because it will
  // be freed.
  Bytes available() const { return total - leased; }
};
absl::StatusOr<std::vector<GpuState>> ListGpus(const std::string& socket);
// Returns at once whether a daemon listens at the socket (empty:
// DefaultSocket()).
bool DaemonListens(const std::string& socket);

// Returns the session socket that is used if none is named: $SLUICE_SOCKET,
// else /run/sluice/session.sock.
std::string DefaultSocket();

}  // namespace sluice::client
