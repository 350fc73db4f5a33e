// The physical memory behind policy's extents: made, exported once, held by
// descriptor, released.
//
// What the arena has ready is taken at once. Device calls run in order on a
// thread of their own, so that making pinned memory (seconds on a GPU node)
// holds nobody else up.
//
// Policy counts the memory of a dead process as free when its end is reported;
// the device may have it back a little later. So what it says it has no room
// for is asked for again, behind everything queued meanwhile (a Destroy may be
// what makes room), for at most `patience`. The device thread does not sleep in
// between, and each time asks for no more of a pool that has just refused as
// little: extents that cannot be made hold up nobody else's.
//
// Thread safety: loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/types.h"
#include "daemon/service/arena.h"
#include "daemon/service/handover.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Extents {
 public:
  using Made = std::function<void(const std::vector<Core::ExtentOutcome>&)>;

  static constexpr absl::Duration kPatience = absl::Seconds(2);

  // `driver`, `arena`, `loop` and `handover` (null: none) outlive it; `made`
  // runs on the loop's thread, when these extents are kept.
  Extents(device::Driver* driver, Arena* arena, Loop* loop, Handover* handover,
          Made made, absl::Duration patience = kPatience);

  // One that an earlier daemon made and kept.
  absl::Status Adopt(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // The same, where policy has not been told yet that it was made: calls
  // `made`.
  void AdoptMade(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // All that was adopted is let go of.
  void Abandon();

  void Make(ExtentId id, PoolId pool, Bytes size);
  // Only a made one. Sends under way keep the descriptor until they are done.
  void Destroy(ExtentId id);
  // Of a made extent, to be sent.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Fd(ExtentId id);
  // Whether anybody reaches an extent: has a descriptor or a mapping of it,
  // or will have one that is being sent. Of one that was destroyed: unknown.
  Held HeldByOthers(ExtentId id);
  size_t size() const { return extents_.size(); }
  // No device call any more; false: one still ran after `patience`.
  bool Finish(absl::Duration patience) { return device_.Finish(patience); }

 private:
  struct Wanted {
    ExtentId id;
    PoolId pool;
    Bytes size;
  };
  using Batch = std::vector<Wanted>;
  // Asks the device, which may need the room of what the arena has ready.
  absl::StatusOr<ExportedMemory> Create(const Wanted& wanted);
  // On the device thread: makes a batch and tells the loop at once. A lease
  // asks for many extents together, and a wake-up for each would cost more
  // than making them.
  void MakeBatch(const std::shared_ptr<Batch>& batch);
  // Makes what can be made; where the device has no room, adds to `waiting_`.
  void MakeAll(const Batch& wanted);
  // Tries again what waits.
  void Retry();
  void RetryLater();
  using Tries =
      std::vector<std::pair<ExtentId, absl::StatusOr<ExportedMemory>>>;
  // The loop, once what was made is kept for the next daemon.
  void Tell(Tries made);
  void Record(const Tries& made);

  device::Driver* driver_;
  Arena* arena_;
  Loop* loop_;
  Handover* handover_;
  const Made made_;
  const absl::Duration patience_;
  const MonotonicClock clock_;
  // The descriptor is kept, but where the device tells who has another; there
  // ours would be one.
  std::map<ExtentId, ExportedMemory> extents_;
  Mutex mutex_;
  // The batch that more can join. Null once it has begun, and after a Destroy:
  // what is wanted later may need its memory.
  std::shared_ptr<Batch> open_ ABSL_GUARDED_BY(mutex_);
  // What the device had no room for; on the device thread only.
  struct Waiting {
    Wanted wanted;
    absl::Time deadline;
    absl::Status why;
  };
  std::vector<Waiting> waiting_;
  TaskThread device_;  // last: its tasks use the rest
};

}  // namespace sluice::daemon
