// The physical memory behind policy's extents: made, exported once, held by
// descriptor, released.
//
// Device calls run in order on a thread of their own, so that making pinned
// memory (seconds on a GPU node) holds nobody else up.
//
// Thread safety: loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/types.h"
#include "daemon/service/loop.h"
#include "daemon/service/task_thread.h"
#include "kernels/device/driver.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Extents {
 public:
  using Made = std::function<void(ExtentId, absl::Status)>;

  // `driver` and `loop` outlive it; `made` runs on the loop's thread.
  Extents(device::Driver* driver, Loop* loop, Made made);

  void Make(ExtentId id, PoolId pool, Bytes size);
  // Only a made one. Sends under way keep the descriptor until they are done.
  void Destroy(ExtentId id);
  // Of a made extent.
  std::shared_ptr<const UniqueFd> fd(ExtentId id) const;
  size_t size() const { return extents_.size(); }

 private:
  struct Extent {
    device::Memory memory;
    std::shared_ptr<const UniqueFd> fd;
  };
  struct Wanted {
    ExtentId id;
    PoolId pool;
    Bytes size;
  };
  absl::StatusOr<Extent> MakeNow(PoolId pool, Bytes size);
  using Batch = std::vector<Wanted>;
  // On the device thread: makes a batch and tells the loop at once. A lease
  // asks for many extents together, and a wake-up a piece would cost more
  // than making them.
  void MakeBatch(const std::shared_ptr<Batch>& batch);
  void Keep(ExtentId id, absl::StatusOr<Extent> extent);

  device::Driver* driver_;
  Loop* loop_;
  const Made made_;
  std::map<ExtentId, Extent> extents_;
  std::mutex mutex_;
  // The batch that more can join; guarded by mutex_. Null once it has begun,
  // and after a Destroy: what is wanted later may need its memory.
  std::shared_ptr<Batch> open_;
  TaskThread device_;  // last: its tasks use the rest
};

}  // namespace sluice::daemon
