// The physical memory behind policy's extents: made, exported once, held by
// descriptor, released.
//
// What the arena has ready is taken at once. All else is made by device calls
// on threads of their own, one of all GPUs' memory and one of each NUMA node's,
// on that node's cores: making pinned memory takes seconds, and holds up
// neither the loop nor the memory of another place. On each thread principals
// take turns, extent by extent, by the time that theirs took (FairQueue), so a
// lease waits for one call of each other principal however much these lease.
// What was made is told when nothing more of its principal is to be made there,
// and every kTellEvery, by which a client knows that its lease goes on. What is
// destroyed is released first: it may be the room for what is made.
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

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/types.h"
#include "daemon/quota/fair_queue.h"
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
  static constexpr absl::Duration kTellEvery = absl::Milliseconds(250);

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

  // For `who`, whose turn it is to be.
  void Make(ExtentId id, PoolId pool, Bytes size, PrincipalId who);
  // Only a made one. Sends under way keep the descriptor until they are done.
  void Destroy(ExtentId id);
  // Of a made extent, to be sent.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Fd(ExtentId id);
  // Whether anybody reaches an extent: has a descriptor or a mapping of it,
  // or will have one that is being sent. Of one that was destroyed: unknown.
  Held HeldByOthers(ExtentId id);
  size_t size() const { return extents_.size(); }
  // No device call any more; false: one still ran after `patience`.
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
  // What the device had no room for.
  struct Waiting {
    Wanted wanted;
    absl::Time deadline;
    absl::Status why;
  };
  // Of one thread. mutex_ guards the first three, the rest is the thread's.
  struct Lane {
    std::deque<ExportedMemory> unwanted;
    FairQueue<PrincipalId, Wanted> wanted;
    bool works = false;  // a task of it is under way
    std::vector<Waiting> waiting;
    Tries made;  // not told yet
    absl::Time made_since;
    std::unique_ptr<TaskThread> thread;  // last: its tasks use the rest
  };
  struct Kept {
    ExportedMemory memory;
    PoolId pool;
  };
  // Made when first asked for. On the loop's thread.
  Lane& LaneOf(PoolId pool);
  void Wake(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On the lane's thread: one call of the device, and the next.
  void Work(Lane& lane);
  void Release(Lane& lane, ExportedMemory memory);
  void MakeOne(Lane& lane, PrincipalId who, const Wanted& wanted);
  // Asks the device, which may need the room of what the arena has ready.
  absl::StatusOr<ExportedMemory> Create(const Wanted& wanted);
  // Tries again what waits.
  void Retry(Lane& lane);
  void RetryLater(Lane& lane);
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
  std::map<ExtentId, Kept> extents_;
  Mutex mutex_;
  // The key: 0 of all GPUs, and one more than its number of a NUMA node.
  std::map<uint64_t, std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::daemon
