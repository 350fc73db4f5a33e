// One direction of the copy engine: a queue, the thread that issues it and the
// stream it issues to. Internal to the copy engine.
//
// A request that nothing holds back is issued by Push itself: to wake a thread
// costs more than to issue. Only what has to wait, for a ticket that was not
// recorded yet, for a grant or until it may ask for one (granted_ahead.h), goes
// through the queue; and what is pushed behind that. So requests are issued in
// the order of Push.
//
// [Note: owed grants] A host that runs ahead may enqueue a whole step behind
// one kernel. Had all those copies their grants, the rank's limit would be used
// up by what cannot start, while other ranks' copies could. So a copy that
// compute or the other direction still holds back is issued as soon as the
// limit has room for it and for all such copies before it, but its grant is
// taken when it can start. One that finds no room waits for room, or until it
// can start.
//
// Threads: Push from the compute thread. The issuing thread owns the lane's
// state: the lane's thread while the queue has something, else the pusher.
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
  // Stops, issues what is queued and ends the thread.
  ~CopyLane();

  // From now on what is queued is issued without waiting for grants.
  void Stop();

  // `slack`: CopySlack's, where it is known.
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
    // When compute needs it; set if only grants held it back at Push.
    std::optional<absl::Time> due;
  };

  void Run();
  // Whether grants limit anything here.
  bool IsLimited() const;
  // How many of the `size` bytes of `item` may be issued without waiting, a
  // slice or all; their grant is taken or owed. Nothing: it has to wait.
  std::optional<Bytes> GrantNow(const Item& item, Bytes size);
  // Whether the limit has room for a grant that is owed, which is noted.
  bool Owe(const CopyRequest& request, Bytes size);
  // Whether the link alone holds it back.
  bool CanStart(const CopyRequest& request);
  // Takes the grants of owed copies that can start.
  void TakeOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the request may owe its grant (all of `size` is returned), or
  // can start (0).
  Bytes AwaitTurn(const CopyRequest& request, Bytes size);
  // Issues it, and tells its ticket; the first `granted` bytes have their
  // grant.
  void Issue(const Item& item, Bytes granted);
  absl::Status TryIssue(const Item& item, Bytes granted);
  absl::Status AwaitTickets(const CopyRequest& request);
  // Whether all of them are reached, but for those of the lane's own stream.
  bool AreReached(const std::vector<Ticket>& after) const;
  // Tells the daemon by when `item`, of `size` bytes, is needed.
  void TellDue(const Item& item, Bytes size);
  // Copies all pieces, `left` bytes; where it is `timed`, the timeline's span
  // begins just before the first.
  absl::Status CopyPieces(const CopyRequest& request, Bytes left, Bytes granted,
                          bool timed);
  int GrantDirection() const {
    return direction_ == device::CopyDirection::kHostToDevice ? kH2d : kD2h;
  }
  void TakeGrant(Bytes size);
  absl::Status EndSlice();
  // Has `mark` reached when what is on the stream so far has ended.
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
  // Its front is the one being issued.
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  // See [Note: owed grants]; in the order of the stream.
  struct Owed {
    std::vector<Ticket> after;
    Bytes size;
  };
  std::deque<Owed> owed_ ABSL_GUARDED_BY(mutex_);
  Bytes owed_bytes_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice::client
