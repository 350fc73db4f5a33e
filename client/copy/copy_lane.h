// One direction of the copy engine: a queue, the thread that issues it and the
// stream it issues to. Internal to the copy engine.
//
// Threads: Push from the compute thread; everything else is the lane's own
// thread's. Requests are issued in the order of Push.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <thread>

#include "client/copy/copy_engine.h"
#include "client/copy/copy_timeline.h"
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

  void Push(CopyRequest request, std::shared_ptr<TicketAccess::State> ticket);
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
  };

  void Run();
  absl::Status Issue(const Item& item);
  absl::Status AwaitTickets(const CopyRequest& request);
  // Copies all pieces, `left` bytes; records `start` (may be null) just
  // before the first.
  absl::Status CopyPieces(const CopyRequest& request, Bytes left,
                          TicketAccess::State* start);
  void TakeGrant(Bytes size);
  void Poison(const CopyRequest& request);

  const CopyEngine::Options options_;
  const device::CopyDirection direction_;
  const device::Stream stream_;
  const std::shared_ptr<EventPool> pool_;
  Fault* const fault_;
  CopyTimeline* const timeline_;
  std::atomic<int64_t> copied_{0};
  std::atomic<int64_t> grant_wait_ns_{0};
  std::atomic<bool> stopping_{false};
  // The last request's ticket: poisoning waits for it (debug builds).
  std::shared_ptr<TicketAccess::State> last_;

  Mutex mutex_;
  CondVar changed_;
  // Its front is the one being issued.
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice::client
