// One direction of the copy engine: a queue, the thread that issues its
// requests and the stream that they go to. Internal to the copy engine.
//
// Push issues a request itself if nothing holds it back, because waking a
// thread costs more than issuing. A request goes through the queue only if it
// has to wait (for a ticket that is not recorded yet, for a grant, or until it
// may ask for one, see granted_ahead.h) or if the queue is not empty. So
// requests are issued in the order of Push.
//
// [Note: owed grants] A host that runs ahead may enqueue a whole step behind
// one kernel. If all those copies took their grants at once, copies that cannot
// start would use up the rank's limit, while other ranks' copies could start.
// So a copy that compute or the other direction still holds back is issued as
// soon as the limit has room for it and for all such copies before it, but its
// grant is taken only when it can start. If the limit has no room, the copy
// waits for room, or until it can start.
//
// Threads: Push runs on the compute thread. The issuing thread owns the lane's
// state: that is the lane's thread while the queue is not empty, else the
// pusher.
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

// The first fault of an engine; later ones are its consequences.
// Thread safety: safe.
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
  // Everything pointed at outlives the lane; `timeline` may be null.
  CopyLane(const CopyEngine::Options& options, device::CopyDirection direction,
           device::Stream stream, std::shared_ptr<EventPool> pool, Fault* fault,
           CopyTimeline* timeline);
  // Stops, issues the queued requests and ends the thread.
  ~CopyLane();

  // From now on, queued requests are issued without waiting for grants.
  void Stop();

  // `slack` is the label's CopySlack, if known.
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
    // When compute needs the copy; set if only grants held it back at Push.
    std::optional<absl::Time> due;
  };

  void Run();
  // Returns whether grants limit this direction.
  bool IsLimited() const;
  // Returns how many of the `size` bytes of `item` may be issued without
  // waiting: one slice or all. Their grant is taken or owed. Returns nullopt if
  // the item has to wait.
  std::optional<Bytes> GrantNow(const Item& item, Bytes size);
  // Records an owed grant; returns false if the limit has no room for it.
  bool Owe(const CopyRequest& request, Bytes size);
  // Returns whether the link alone holds the request back.
  bool CanStart(const CopyRequest& request);
  // Takes the grants of owed copies that can start.
  void TakeOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the request may owe its grant (returns `size`) or can start
  // (0).
  Bytes AwaitTurn(const CopyRequest& request, Bytes size);
  // Issues the item and sets its ticket's phase. The first `granted` bytes
  // already have their grant.
  void Issue(const Item& item, Bytes granted);
  absl::Status TryIssue(const Item& item, Bytes granted);
  absl::Status AwaitTickets(const CopyRequest& request);
  // Returns whether all tickets, except the lane's own stream's, are reached.
  bool AreReached(const std::vector<Ticket>& after) const;
  // Tells the daemon the deadline of `item`, which has `size` bytes.
  void TellDue(const Item& item, Bytes size);
  // Copies all pieces, `left` bytes. If `timed`, the timeline's span begins
  // just before the first piece.
  absl::Status CopyPieces(const CopyRequest& request, Bytes left, Bytes granted,
                          bool timed);
  int GrantDirection() const {
    return direction_ == device::CopyDirection::kHostToDevice ? kH2d : kD2h;
  }
  void TakeGrant(Bytes size);
  absl::Status EndSlice();
  // Records `mark`, which is reached when the stream's work so far has ended.
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
  // The front is the item that is being issued.
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  // See [Note: owed grants]. In the order of the stream.
  struct Owed {
    std::vector<Ticket> after;
    Bytes size;
  };
  std::deque<Owed> owed_ ABSL_GUARDED_BY(mutex_);
  Bytes owed_bytes_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice::client
