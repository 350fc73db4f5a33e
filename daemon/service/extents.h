// The physical memory of policy's extents: made, exported once, kept by
// descriptor, released.
//
// Extents that the arena has ready are taken at once. Others are made by device
// calls on other threads, because making pinned memory takes seconds and must
// delay neither the loop nor memory of another place. There is one thread for
// the memory of all GPUs, and one per NUMA node, on that node's cores. On each
// thread principals take turns, extent by extent, by the time used (FairQueue).
// So a lease waits for one call of each other principal, however much that one
// leases. Made extents are reported when no more of their principal are queued
// there, and every kTellEvery, so that a client sees the progress of its lease.
// Extents to destroy are released before others are made, because that may give
// room.
//
// Policy counts the memory of a dead process as free when its end is reported;
// the device may free it a little later. So if the device has no room for an
// extent, making it is tried again, for at most `patience`, after everything
// queued in between (a Destroy may give room). The thread does not sleep
// between tries. In one round it skips extents that are not smaller than one
// which the same pool has just refused, so that extents that cannot be made
// delay no others.
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
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Memory of this process, and its descriptor for sending.
struct ExportedMemory {
  device::Memory memory;  // empty (0) if it is of a lost GPU
  std::shared_ptr<const UniqueFd> fd;
};

// Makes host memory ahead of the leases that will use it.
//
// Making pinned memory takes seconds on a GPU node, and a cold lease of 1 GiB
// takes the system calls of 16 extents even on `sim`. For each NUMA node, a
// thread on that node's cores makes extents of the standard size ahead, until
// `ready` bytes exist. A lease takes ready extents at once; if too few are
// ready, it is slower, not refused. While leases wait for the device to make
// memory of the node (Pause), nothing is made ahead there: a lease waits at
// most for the current device call.
//
// Ready memory counts as free in policy. If the device has no room for another
// extent, ready memory is released before the lease fails, and made again after
// memory was released. Thread safety: safe.
class Arena {
 public:
  struct Options {
    std::vector<NumaIndex> nodes;
    Bytes ready;   // per node, at most; 0: nothing is made ahead
    Bytes extent;  // size of each extent
  };

  // `driver` must outlive this object.
  Arena(device::Driver* driver, const Options& options);
  // Releases ready memory; waits for at most one device call per node.
  ~Arena();

  // Returns an extent of the standard size; nullopt if none is ready or `size`
  // is a different one.
  std::optional<ExportedMemory> Take(PoolId pool, Bytes size);
  // Releases all ready memory of `pool` and makes no more until Refill. Returns
  // whether there was any.
  bool MakeRoom(PoolId pool);
  // Sets whether leases of `pool` wait for the device.
  void Pause(PoolId pool, bool paused);
  // Memory was released, so the device may have room again: goes on making
  // memory.
  void Refill();

  Bytes ready(NumaIndex numa) const;

 private:
  struct Node {
    std::vector<ExportedMemory> ready;
    bool paused = false;
    bool full = false;        // the device had no room
    bool filling = false;     // a task is running
    bool room_since = false;  // Refill was called since the task began
    std::unique_ptr<TaskThread> thread;
  };
  bool Wants(const Node& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fill(uint64_t numa, Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes one extent, and queues the next. Runs on the node's thread.
  void MakeOne(uint64_t numa);

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

  // `driver`, `arena`, `loop` and `handover` (may be null) must outlive this
  // object. `made` is called on the loop's thread when made extents are kept.
  Extents(device::Driver* driver, Arena* arena, Loop* loop, Handover* handover,
          Made made, absl::Duration patience = kPatience);

  // Adopts an extent that an earlier daemon made and kept.
  absl::Status Adopt(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // Adopts an extent that policy still counts as being made, and calls `made`.
  void AdoptMade(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // Releases all adopted extents.
  void Abandon();

  // Queues the extent; it is made when the principal has its turn.
  void Make(ExtentId id, PoolId pool, Bytes size, PrincipalId who);
  // Destroys a made extent. A packet that waits to be sent keeps the descriptor
  // until then.
  void Destroy(ExtentId id);
  // Returns the descriptor of a made extent, for sending.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Fd(ExtentId id);
  // Returns whether another process has a descriptor or a mapping of the
  // extent, or will receive a descriptor that was sent. kUnknown if the extent
  // was destroyed.
  Held HeldByOthers(ExtentId id);
  // Ends device calls. Returns false if one still ran after `patience`.
  bool Finish(absl::Duration patience);

 private:
  struct Wanted {
    ExtentId id;
    PoolId pool;
    Bytes size;
  };
  struct Try {
    ExtentId id;
    PoolId pool;
    absl::StatusOr<ExportedMemory> made;
  };
  using Tries = std::vector<Try>;
  // An extent to be tried again, because the device had no room.
  struct Waiting {
    Wanted wanted;
    absl::Time deadline;
    absl::Status why;
  };
  // The work of one thread. mutex_ guards the members up to `works`; the rest
  // belongs to the thread.
  struct Lane {
    std::deque<ExportedMemory> unwanted;
    FairQueue<PrincipalId, Wanted> wanted;
    bool works = false;  // a task for it is queued or runs
    std::vector<Waiting> waiting;
    Tries made;  // not reported yet
    absl::Time made_since;
    std::unique_ptr<TaskThread> thread;  // last: its tasks use the rest
  };
  struct Kept {
    ExportedMemory memory;
    PoolId pool;
  };
  // Returns the lane, creating it if needed. Loop's thread.
  Lane& LaneOf(PoolId pool);
  void Wake(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes one device call, and queues the next. Lane's thread.
  void Work(Lane& lane);
  void Release(Lane& lane, ExportedMemory memory);
  void MakeOne(Lane& lane, PrincipalId who, const Wanted& wanted);
  // Creates the memory. If the device has no room, releases ready extents
  // first.
  absl::StatusOr<ExportedMemory> Create(const Wanted& wanted);
  // Tries waiting extents again.
  void Retry(Lane& lane);
  void RetryLater(Lane& lane);
  // Reports `made` to the loop once these extents are kept for the next daemon.
  void Tell(Tries made);
  void Record(const Tries& made);

  device::Driver* driver_;
  Arena* arena_;
  Loop* loop_;
  Handover* handover_;
  const Made made_;
  const absl::Duration patience_;
  const MonotonicClock clock_;
  // The descriptor is kept unless the device reports holders: the daemon's own
  // descriptor would count as one.
  std::map<ExtentId, Kept> extents_;
  Mutex mutex_;
  // By key: 0 for all GPUs, and a NUMA node's number + 1.
  std::map<uint64_t, std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::daemon
