// The physical memory of policy's extents: made, exported once, kept by
// descriptor, released.
//
// Extents that the arena has ready are taken at once. Others are made by device
// calls on other threads, because making pinned memory takes seconds: one
// thread for the memory of all GPUs, and one per NUMA node, on that node's
// cores. Each thread serves principals in turn, extent by extent, by the time
// used (FairQueue), so a lease waits for one call of each other principal. Made
// extents are reported when the thread has no more of that principal queued,
// and every kTellEvery, for the progress of a lease. Extents to destroy are
// released before others are made, because the release may make room.
//
// Policy counts the memory of a dead process as free when its end is reported;
// the device may free it a little later. So if the device has no room, making
// an extent is tried again, for at most `patience`, after everything queued in
// between. A round of tries skips extents of a pool that has just refused a
// smaller or equal one, so that they delay no others.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/node/types.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "kernels/device/driver.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

struct ExportedMemory {
  device::Memory memory;  // empty (0) if the GPU is lost
  SharedFd fd;
};

// Makes host memory ahead of leases, since making pinned memory takes seconds.
// For each NUMA node, a thread on that node's cores makes extents of the
// standard size until `ready` bytes exist. While leases wait for the device to
// make memory of the node (Pause), nothing is made ahead there. Ready memory
// counts as free in policy. So if the device has no room for a lease's extent,
// ready memory is released before the lease fails. It is made again after other
// memory was released.
//
// Thread safety: safe.
class Arena {
 public:
  struct Options {
    std::vector<NumaIndex> nodes;
    Bytes ready;   // per node, at most; 0: nothing is made ahead
    Bytes extent;  // size of each extent
  };

  Arena(device::Driver* driver, const Options& options);
  // Waits for at most one device call per node.
  ~Arena() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // Returns ready memory; nullopt if there is none of this size.
  std::optional<ExportedMemory> Take(PoolId pool, Bytes size);
  // Releases all ready memory, and makes no more until Refill. Returns whether
  // there was any.
  bool MakeRoom(PoolId pool);
  void Pause(PoolId pool, bool paused);
  // Makes memory again. Call it after memory was released.
  void Refill();

  Bytes ready(NumaIndex numa) const;

 private:
  struct Node {
    NumaIndex numa;
    std::vector<ExportedMemory> ready;
    bool paused = false;
    bool full = false;        // the device had no room
    bool filling = false;     // a task is running
    bool room_since = false;  // Refill was called since the task began
    std::unique_ptr<TaskThread> thread;
  };
  // Returns null if nothing is made ahead in the pool.
  Node* NodeOf(PoolId pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fill(Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeOne(Node& node);

  device::Driver* const driver_;
  const Options options_;
  mutable Mutex mutex_;
  std::map<uint64_t, Node> nodes_ ABSL_GUARDED_BY(mutex_);
};

// Thread safety: loop's thread only.
class Extents {
 public:
  using Made = std::function<void(const std::vector<Core::ExtentOutcome>&)>;

  static constexpr absl::Duration kPatience = absl::Seconds(2);
  static constexpr absl::Duration kTellEvery = absl::Milliseconds(250);

  // The pointers must outlive this object. `made` is called on the loop's
  // thread when made extents are kept for the next daemon.
  Extents(device::Driver* driver, Arena* arena, Loop* loop, Handover* handover,
          Made made, absl::Duration patience = kPatience);

  absl::Status Adopt(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // Adopts an extent that policy counts as being made, and calls `made`.
  void AdoptMade(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  void Abandon();

  void Make(ExtentId id, PoolId pool, Bytes size, PrincipalId who);
  // Destroys the extent. A packet that waits to be sent keeps its descriptor.
  void Destroy(ExtentId id);
  absl::StatusOr<SharedFd> Fd(ExtentId id);
  // Returns whether another process has a descriptor or mapping of the extent,
  // or will receive a sent one. kUnknown: destroyed, or the device cannot tell.
  Held HeldByOthers(ExtentId id);
  // Returns false if a device call still ran after `patience`.
  bool Finish(absl::Duration patience);

 private:
  // An extent until it is reported.
  struct Wanted {
    ExtentId id;
    PoolId pool;
    Bytes size;
    absl::StatusOr<ExportedMemory> made{};  // the last try
    absl::Time deadline = {};               // of tries
  };
  // mutex_ guards the members up to `works`; only the thread uses the others.
  struct Lane {
    std::deque<ExportedMemory> unwanted;
    FairQueue<PrincipalId, Wanted> wanted;
    bool works = false;  // a task for this lane is queued or runs
    std::vector<Wanted> waiting;
    std::vector<Wanted> made;  // not reported yet
    absl::Time made_since;
    std::unique_ptr<TaskThread> thread;  // last: its tasks use the others
  };
  struct Kept {
    ExportedMemory memory;
    PoolId pool;
  };
  Lane& LaneOf(PoolId pool);
  void Wake(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // These five run on the lane's thread.
  void Work(Lane& lane);
  void MakeOne(Lane& lane, PrincipalId who, Wanted wanted);
  // If the device has no room, releases ready extents and tries once more.
  absl::StatusOr<ExportedMemory> Create(const Wanted& wanted);
  void Retry(Lane& lane);
  void RetryLater(Lane& lane);
  // Reports extents once they are kept for the next daemon.
  void Tell(std::vector<Wanted> made);

  device::Driver* driver_;
  Arena* arena_;
  Loop* loop_;
  Handover* handover_;
  const Made made_;
  const absl::Duration patience_;
  // If the device reports holders, descriptors are not kept: each would count
  // as a holder.
  std::map<ExtentId, Kept> extents_;
  Mutex mutex_;
  // Keys: 0 for all GPUs; a NUMA node's number + 1.
  std::map<uint64_t, std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::daemon
