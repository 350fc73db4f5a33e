// One direction of the copy engine: its stream, a queue, and the thread that
// issues queued requests. Internal to the copy engine.
//
// Push issues a request itself if the request need not wait, because waking a
// thread costs more than issuing. A request goes through the queue only if it
// has to wait (for a ticket that is not recorded yet, for a grant, or until it
// may ask for a grant, see granted_ahead.h) or if the queue is not empty. So
// requests are issued in the order of Push.
//
// [Note: owed grants] A host that runs ahead may enqueue a whole step behind
// one kernel. If all those copies took their grants at once, copies that cannot
// start would use up the rank's limit, while other ranks' copies could start.
// So a copy that compute or the other direction still holds back is issued as
// soon as the limit has room for it and for all such copies before it, but its
// grant is taken only when the copy can start. If the limit has no room, the
// copy waits until the limit has room or the copy can start.
//
// Threads: Push runs on the compute thread. The lane's state belongs to the
// lane's thread while the queue is not empty, and to the thread that calls Push
// while the queue is empty.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "client/copy/copy_engine.h"
#include "client/copy/copy_timeline.h"
#include "client/copy/granted_ahead.h"
#include "client/copy/ticket_state.h"
#include "proto/base/mutex.h"

namespace sluice::client {

// Keeps the first fault of an engine, because later faults are its
// consequences. Thread safety: thread-safe.
class Fault {
 public:
  void Keep(const absl::Status& status);
  absl::Status Get() const;
  bool set() const { return set_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> set_{false};
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class CopyLane {
 public:
  // All pointers must stay valid as long as the lane exists; `timeline` may be
  // null.
  CopyLane(const CopyEngine::Options& options, device::CopyDirection direction,
           device::Stream stream, std::shared_ptr<EventPool> pool, Fault* fault,
           CopyTimeline* timeline);
  // Stops, issues the queued requests and ends the thread.
  ~CopyLane();

  // Makes the lane issue queued requests without waiting for grants from now
  // on.
  void Stop();

  // `slack` is the CopySlack of the request's label, if known.
  void Push(CopyRequest request, std::shared_ptr<TicketAccess::State> ticket,
            std::optional<absl::Duration> slack = std::nullopt);
  // Blocks until everything pushed is issued.
  void AwaitIdle();

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
    // When compute needs the copy. Set if only grants held the copy back at
    // Push.
    std::optional<absl::Time> due;
  };

  void Run();
  // Returns whether grants limit this direction.
  bool IsLimited() const;
  // Returns how many of the `size` bytes of `item` may be issued without
  // waiting: one slice or all bytes. Takes the grant for these bytes or records
  // it as owed. Returns nullopt if the item has to wait.
  std::optional<Bytes> GrantNow(const Item& item, Bytes size);
  // Records an owed grant; returns false if the limit has no room for it.
  bool Owe(const CopyRequest& request, Bytes size);
  // Returns whether the request waits for nothing but the link.
  bool CanStart(const CopyRequest& request);
  // Takes the grants of owed copies that can start.
  void TakeOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the request may owe its grant (returns `size`) or can start
  // (returns 0).
  Bytes AwaitTurn(const CopyRequest& request, Bytes size);
  // Issues the item and sets its ticket's phase. The first `granted` bytes
  // already have their grant.
  void Issue(const Item& item, Bytes granted);
  absl::Status TryIssue(const Item& item, Bytes granted);
  absl::Status AwaitTickets(const CopyRequest& request);
  // Returns whether all tickets are reached, ignoring those of the lane's own
  // stream.
  bool AreReached(const std::vector<Ticket>& after) const;
  // Sends the daemon the deadline of `item`, which has `size` bytes.
  void TellDue(const Item& item, Bytes size);
  // Copies all pieces; `left` is the number of their bytes. If `timed`, the
  // timeline's span begins just before the first piece.
  absl::Status CopyPieces(const CopyRequest& request, Bytes left, Bytes granted,
                          bool timed);
  int GrantDirection() const {
    return direction_ == device::CopyDirection::kHostToDevice ? kH2d : kD2h;
  }
  void TakeGrant(Bytes size);
  absl::Status EndSlice();
  // Records `mark`, which is reached when all work so far on the stream has
  // ended.
  absl::Status Record(TicketAccess::State& mark);
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

  Mutex mutex_;
  CondVar changed_;
  // The front is the item that is currently issued.
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  // Copies that owe their grant, in the stream's order: see [Note: owed
  // grants].
  struct Owed {
    std::vector<Ticket> after;
    Bytes size;
  };
  std::deque<Owed> owed_ ABSL_GUARDED_BY(mutex_);
  Bytes owed_bytes_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses all members above
};

}  // namespace sluice::client
