// Makes host memory ahead of the leases that will use it.
//
// Making pinned memory takes seconds on a GPU node, and a cold lease of 1 GiB
// takes the system calls of 16 extents even on `sim`. For each NUMA node, a
// thread on that node's cores makes extents of the standard size ahead, until
// `ready` bytes exist. A lease takes ready extents at once, and the thread
// makes new ones. If too few are ready, a lease is made as without an arena:
// slower, not refused.
//
// While leases wait for the device to make memory of the node (Pause), nothing
// is made ahead there: a lease waits at most for the current device call.
//
// Ready memory was never leased, and counts as free in policy. If the device
// has no room for another extent, ready memory is released before the lease
// fails, and made again after memory was released.
//
// Thread safety: all methods from any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/core/node/types.h"
#include "daemon/service/threads/task_thread.h"
#include "kernels/device/driver.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Memory of this process, and its descriptor for sending.
struct ExportedMemory {
  device::Memory memory;  // empty (0) if it is of a lost GPU
  std::shared_ptr<const UniqueFd> fd;
};
// Exports `memory`, or releases it if it cannot be exported.
absl::StatusOr<ExportedMemory> ExportMemory(device::Driver& driver,
                                            device::Memory memory);
// Releases the memory. Logs a failure, because no caller could handle it.
void ReleaseMemory(device::Driver& driver, ExportedMemory memory);

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

}  // namespace sluice::daemon
