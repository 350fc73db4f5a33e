// One direction of the copy engine: its stream, a queue, and the thread that
// issues queued requests. Internal to the copy engine.
//
// `Push` issues most requests itself, because waking the thread costs more than
// that. A request is queued only if the queue is not empty, if it takes several
// grants, or if it waits for a ticket that is not recorded yet or for a grant.
//
// [Note: owed grants] A host that runs ahead may enqueue a whole step behind
// one kernel. If all those copies took their grants at once, copies that cannot
// start would use up the limit that other ranks could use. So a copy that
// compute or the other direction still holds back is issued as soon as the
// limit has room for it and for all such copies before it, but takes its grant
// only when it can start.
//
// Threads: the compute thread calls `Push`. The lane's state belongs to the
// lane's thread while the queue is not empty, and to the compute thread while
// the queue is empty.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/copy/granted_ahead.h"
#include "client/copy/ticket_state.h"
#include "kernels/device/stream_timer.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::client {

// Keeps an engine's first fault; later ones are its consequences. Thread-safe.
class Fault {
 public:
  void Keep(const absl::Status& status) {
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    status_.Update(status);
    set_.store(true, std::memory_order_release);
  }
  absl::Status Get() const {
    if (!set()) return absl::OkStatus();
    const MutexLock lock(mutex_);
    return status_;
  }
  bool set() const { return set_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> set_{false};
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Records when copies really started and ended.
//
// The copy streams' clocks measure the times (kernels/device/stream_timer.h).
// The host's clock is not used: to a host that polls, a short copy seems to
// take no time, or as long as a nap. No method except Align waits.
//
// Errors: the driver's. After an error in reading times, no more times are
// reported. Thread safety: only the thread that issues a direction's copies
// calls Begin and End for that direction; any thread calls other methods.
class CopyTimeline {
 public:
  // `streams[0]` copies to the GPU, `streams[1]` to the host.
  CopyTimeline(device::Driver* driver, std::array<device::Stream, 2> streams);

  // Waits for both streams and aligns the host's clock with their clocks, which
  // drift. Call it at the start and where the host waits for both streams.
  absl::Status Align();
  // Call `Begin` and `End` around enqueuing a request's copies. `Begin` drops a
  // span that has begun and not ended.
  absl::Status Begin(device::CopyDirection direction) {
    Lane& lane = LaneOf(direction);
    return lane.timer.Begin(lane.stream);
  }
  // `record` states the label, direction, size and issue time.
  absl::Status End(const CopyRecord& record);
  // Returns the copies that ended since the last call; copies of one direction
  // are in order.
  std::vector<CopyRecord> Take() {
    const MutexLock lock(mutex_);
    for (const auto& lane : lanes_) TakeEnded(*lane);
    return std::exchange(ended_, {});
  }

 private:
  struct Lane {
    Lane(device::Driver* driver, device::Stream stream)
        : stream(stream), timer(driver) {}
    const device::Stream stream;
    device::StreamTimer timer;
    std::deque<CopyRecord> pending;  // guarded by mutex_
  };

  Lane& LaneOf(device::CopyDirection direction) {
    return *lanes_[direction == device::CopyDirection::kHostToDevice ? 0 : 1];
  }
  void TakeEnded(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::array<std::unique_ptr<Lane>, 2> lanes_;
  Mutex mutex_;
  std::vector<CopyRecord> ended_ ABSL_GUARDED_BY(mutex_);
};

class CopyLane {
 public:
  // All pointers outlive the lane; `timeline` may be null.
  CopyLane(const CopyEngine::Options& options, device::CopyDirection direction,
           device::Stream stream, std::shared_ptr<EventPool> pool, Fault* fault,
           CopyTimeline* timeline);
  // Issues the queued requests and ends the thread.
  ~CopyLane() {
    Stop();
    thread_.join();
  }

  // From now on the lane issues queued requests without waiting for grants.
  void Stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
  }

  // `slack` is the CopySlack of the request's label, if known.
  void Push(CopyRequest request, std::shared_ptr<TicketAccess::State> ticket,
            std::optional<absl::Duration> slack = std::nullopt);
  // Blocks until everything pushed is issued.
  void AwaitIdle() {
    const MutexLock lock(mutex_);
    while (!queue_.empty()) changed_.Wait(mutex_);
  }

  device::Stream stream() const { return stream_; }
  Bytes copied() const { return Bytes(copied_.load()); }
  absl::Duration grant_wait() const {
    return absl::Nanoseconds(grant_wait_ns_.load());
  }

 private:
  struct Item {
    CopyRequest request;
    std::shared_ptr<TicketAccess::State> ticket;
    double issued_s;
    std::optional<absl::Duration> slack;
    // When compute needs the copy; set if only grants held it back at Push.
    std::optional<absl::Time> due;
  };

  void Run();
  bool IsLimited() const {
    return options_.gate != nullptr && options_.gate->Limits(GrantDirection());
  }
  // Takes the grant of one slice, or records the grant of all bytes as owed.
  // Returns how many of the `size` bytes may be issued, or nullopt if the item
  // waits.
  std::optional<Bytes> GrantNow(const Item& item, Bytes size);
  // Returns false if the limit has no room for the owed grant.
  bool Owe(const CopyRequest& request, Bytes size);
  // Returns whether the request waits for nothing but the link.
  bool CanStart(const CopyRequest& request);
  void TakeOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the limit has room for an owed grant (returns `size`), or the
  // copy can start or need not wait any more (returns 0).
  Bytes AwaitTurn(const CopyRequest& request, Bytes size);
  // Issues the item; its first `granted` bytes already have their grant.
  void Issue(const Item& item, Bytes granted);
  absl::Status TryIssue(const Item& item, Bytes granted);
  absl::Status AwaitTickets(const CopyRequest& request);
  // Returns whether all tickets of other streams in `after` are reached.
  bool AreReached(const std::vector<Ticket>& after) const;
  void TellDue(const Item& item, Bytes size);
  // `left` is the size of all pieces. If `timed`, begins the timeline's span.
  absl::Status CopyPieces(const CopyRequest& request, Bytes left, Bytes granted,
                          bool timed);
  int GrantDirection() const {
    return direction_ == device::CopyDirection::kHostToDevice ? kH2d : kD2h;
  }
  void TakeGrant(Bytes size);
  absl::Status Record(TicketAccess::State& mark) {
    SLUICE_RETURN_IF_ERROR(options_.driver->RecordEvent(mark.event, stream_));
    mark.Set(TicketAccess::State::kRecorded);
    return absl::OkStatus();
  }
  absl::Status Poison(const CopyRequest& request);

  const CopyEngine::Options options_;
  const device::CopyDirection direction_;
  const device::Stream stream_;
  const std::shared_ptr<EventPool> pool_;
  Fault* const fault_;
  CopyTimeline* const timeline_;
  std::atomic<int64_t> copied_{0};
  std::atomic<int64_t> grant_wait_ns_{0};
  std::atomic<bool> stopping_{false};
  GrantedAhead ahead_;
  AwaitedRequests awaited_;  // by stream_

  Mutex mutex_;
  CondVar changed_;
  // The front is the item that is currently issued.
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  // An issued copy that owes its grant (see [Note: owed grants]).
  struct Owed {
    std::vector<Ticket> after;
    Bytes size;
  };
  std::deque<Owed> owed_ ABSL_GUARDED_BY(mutex_);
  Bytes owed_bytes_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses all members above
};

}  // namespace sluice::client
