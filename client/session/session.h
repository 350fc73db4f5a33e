// A rank's session with the node's daemon: lease, map, plan, events.
//
// The session is its socket: when the process ends, however, the daemon takes
// everything back. Memory is mapped MADV_DONTFORK and MADV_DONTDUMP: a forked
// child sees none, and a core dump has none.
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
  // The GPU's UUID instead of its number, which CUDA_VISIBLE_DEVICES may
  // change; empty: `gpu` counts.
  std::string gpu_uuid;
  // How long a lease may wait for memory instead of being refused at once:
  // first come, first served, but smaller leases pass in the first half of the
  // wait. The daemon's longest_wait_s and its number of waiting leases bound
  // it. At its end: DeadlineExceeded, which names the lease in front.
  absl::Duration lease_wait = absl::ZeroDuration();
  // How long the daemon may be silent about a lease that it neither grants nor
  // refuses. While it makes memory it sends progress, which restarts this time.
  absl::Duration answer_timeout = absl::Seconds(60);
  // False: a changed plan is answered "not taken" for it.
  bool takes_changes = true;
};

// A lease, mapped as one contiguous range. Unmaps and frees on destruction. May
// outlive its session; the session's end gives the lease back.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual Bytes size() const = 0;
  virtual LeaseId lease() const = 0;
};

struct SessionEvent {
  enum class Kind {
    kPeerDied,  // detail: "rank 1 of job demo: killed by signal 9"
    kEvicted,
    kShuttingDown,
    kDisconnected,  // the daemon is gone; mappings and running steps go on
    kPlanChanged,   // ChangedPlan() has one
  };
  Kind kind;
  std::string detail;
};

// As the daemon told at Open, the GPU as after MeasureOutside.
struct NodeLimits {
  std::string driver;  // "sim", "cuda"
  // The session's GPU as this process counts (CUDA_VISIBLE_DEVICES may
  // renumber): what Driver and CopyEngine take.
  DeviceIndex device;
  Bytes gpu_total, gpu_free;    // of its GPU, less what is held outside leases
  Bytes gpu_leased;             // by all sessions
  Bytes host_total, host_free;  // of its NUMA node; free: and Borrowable
  Bytes granularity;            // of leases
  NumaIndex numa;
  double h2d_bytes_per_second = 0;
  double d2h_bytes_per_second = 0;
};

class Session {
 public:
  // NotFound / Unavailable: no daemon at that socket, with what to do.
  // InvalidArgument: an option that no daemon takes.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const SessionOptions& options);
  virtual ~Session() = default;

  virtual SessionId id() const = 0;
  virtual NodeLimits limits() const = 0;
  virtual device::Driver& driver() = 0;
  virtual GrantGate& grants() = 0;

  // Tells the daemon how much of the session's GPU is used, since libraries of
  // this process may have taken memory after Open: leases then leave room for
  // it, and limits() say what is left. Does nothing on sim.
  virtual absl::Status MeasureOutside() = 0;

  // The lease is `size` rounded up to limits().granularity; of host memory it
  // may be larger by less than an extent, and what the GPU's NUMA node lacks is
  // of others (Core::Borrowable). ResourceExhausted: over budget or the pool is
  // empty, with asked, free, limit and remedy. Unavailable: the daemon is gone.
  // `wait`: in the place of SessionOptions::lease_wait.
  using Wait = std::optional<absl::Duration>;
  virtual absl::StatusOr<std::unique_ptr<Region>> LeaseGpu(Bytes size,
                                                           Wait wait = {}) = 0;
  virtual absl::StatusOr<std::unique_ptr<Region>> LeaseHost(Bytes size,
                                                            Wait wait = {}) = 0;

  // Sends the profile and waits until all local ranks of the job have sent
  // theirs and the worker has solved; the plan was validated on both sides.
  // A plan that says it is infeasible is an answer, not an error.
  // DeadlineExceeded: `timeout` passed; Unavailable: the daemon is gone, or a
  // peer died meanwhile; FailedPrecondition: the worker failed, with its
  // reason, or a peer left. What a peer caused is marked
  // (proto/base/peer_fault.h).
  virtual absl::StatusOr<plan::NodePlan> Plan(const plan::RankProfile& profile,
                                              absl::Duration timeout) = 0;

  // Jobs came or went on the node: returns the newest unanswered plan, by which
  // this rank should run from its next step boundary on, or null. Only its
  // fractions count: a rank that takes it records again and calls Plan with a
  // settled profile.
  virtual std::shared_ptr<const plan::NodePlan> ChangedPlan() = 0;
  // Answers it: the plan is taken, or the rank goes on with what it had. The
  // daemon waits for the answer, so a rank that never calls ChangedPlan opens
  // with `takes_changes` false; the session answers a plan that it cannot read.
  // `note`: one line for people, of which 512 bytes are sent, with '?' for what
  // is not UTF-8. Does not wait.
  virtual absl::Status AnswerChange(PlanId plan, bool taken,
                                    const std::string& note) = 0;

  // Reports a step; does not wait. Unavailable, ResourceExhausted: the daemon
  // does not read it now, and the next report that is sent includes its counts.
  // InvalidArgument: a figure that no step can have; nothing is counted.
  virtual absl::Status Report(const StepReport& report) = 0;

  // Called on the session's own thread; must not call back into the session.
  // What happened before the first handler was set is delivered by OnEvent.
  // When OnEvent returns, the former handler is no longer running.
  using EventHandler = std::function<void(const SessionEvent&)>;
  virtual void OnEvent(EventHandler handler) = 0;
};

// The GPUs of the daemon's node in their order, for choosing
// SessionOptions::gpu: asked as an observer, so no rank joins a job. Errors as
// Session::Open.
struct GpuState {
  DeviceIndex index;
  std::string uuid;
  NumaIndex numa;
  Bytes total, leased;  // total: but for what is held outside leases
  // What is leased, or still held by a dead job's process, comes back.
  Bytes available() const { return total - leased; }
};
absl::StatusOr<std::vector<GpuState>> ListGpus(const std::string& socket);
// Whether a daemon listens at the socket (empty: DefaultSocket()). At once.
bool DaemonListens(const std::string& socket);

// The session socket used when none is named: $SLUICE_SOCKET, else
// /run/sluice/session.sock.
std::string DefaultSocket();

}  // namespace sluice::client
