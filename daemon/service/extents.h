// The physical memory behind policy's extents: made, exported once, held by
// descriptor, released.
//
// Extents that the arena has ready are taken at once. Others are made by device
// calls on threads of their own, one for all GPUs' memory and one for each NUMA
// node's, on that node's cores: making pinned memory takes seconds, and holds
// up neither the loop nor the memory of another place. On each thread
// principals take turns, extent by extent, by the time that theirs took
// (FairQueue), so a lease waits for one call of each other principal however
// much these lease. Made extents are reported when nothing more of their
// principal is to be made there, and every kTellEvery, by which a client knows
// that its lease goes on. Extents to be destroyed are released first: that may
// make the room.
//
// Policy counts the memory of a dead process as free when its end is reported;
// the device may have it back a little later. So an extent that the device has
// no room for is tried again, behind everything queued in between (a Destroy
// may make room), for at most `patience`. The device thread does not sleep
// between tries, and in one round skips extents of a pool that has just refused
// one no larger: extents that cannot be made hold up no others.
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
#include "daemon/core/node/types.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/service/arena.h"
#include "daemon/service/takeover/handover.h"
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

  // Adopts an extent that an earlier daemon made and kept.
  absl::Status Adopt(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // The same for an extent that policy does not know to be made: calls `made`.
  void AdoptMade(ExtentId id, PoolId pool, Bytes size, UniqueFd kept);
  // Lets go of all adopted extents.
  void Abandon();

  // Queues the extent; it takes a turn of the principal.
  void Make(ExtentId id, PoolId pool, Bytes size, PrincipalId who);
  // Destroys a made extent. Sends under way keep the descriptor until they end.
  void Destroy(ExtentId id);
  // The descriptor of a made extent, to be sent.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Fd(ExtentId id);
  // Whether another process has a descriptor or a mapping of the extent, or
  // will have one that is being sent. kUnknown if the extent was destroyed.
  Held HeldByOthers(ExtentId id);
  // Ends device calls. False: one still ran after `patience`.
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
  // Extents that the device had no room for.
  struct Waiting {
    Wanted wanted;
    absl::Time deadline;
    absl::Status why;
  };
  // One thread's work. mutex_ guards the first three; the thread has the rest.
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
  // Returns the lane, made when first asked for. On the loop's thread.
  Lane& LaneOf(PoolId pool);
  void Wake(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On the lane's thread: makes one device call, and queues the next.
  void Work(Lane& lane);
  void Release(Lane& lane, ExportedMemory memory);
  void MakeOne(Lane& lane, PrincipalId who, const Wanted& wanted);
  // Asks the device, which may need the room of ready extents.
  absl::StatusOr<ExportedMemory> Create(const Wanted& wanted);
  // Tries waiting extents again.
  void Retry(Lane& lane);
  void RetryLater(Lane& lane);
  // Reports `made` to the loop once it is kept for the next daemon.
  void Tell(Tries made);
  void Record(const Tries& made);

  device::Driver* driver_;
  Arena* arena_;
  Loop* loop_;
  Handover* handover_;
  const Made made_;
  const absl::Duration patience_;
  const MonotonicClock clock_;
  // The descriptor is kept unless the device tells whether others hold one:
  // there the daemon's own would count.
  std::map<ExtentId, Kept> extents_;
  Mutex mutex_;
  // The key: 0 for all GPUs, and a NUMA node's number + 1.
  std::map<uint64_t, std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::daemon
