// The state behind a Ticket, and the pool of events. Internal to client/copy.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::client {

// A pool of events, each reused once its ticket is destroyed. Waits that are
// still queued are unaffected, because a wait refers to the last recording
// before it. Thread safety: thread-safe.
class EventPool {
 public:
  explicit EventPool(device::Driver* driver) : driver_(driver) {}

  absl::StatusOr<device::Event> Take() {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      const device::Event event = free_.back();
      free_.pop_back();
      return event;
    }
    SLUICE_ASSIGN_OR_RETURN(const device::Event event, driver_->CreateEvent());
    all_.push_back(event);
    return event;
  }
  void Return(device::Event event) {
    const MutexLock lock(mutex_);
    if (!closed_) free_.push_back(event);
  }
  // Returns whether the last recording of `event` is reached; true after Close.
  absl::StatusOr<bool> Reached(device::Event event) {
    const MutexLock lock(mutex_);
    if (closed_) return true;
    return driver_->QueryEvent(event);
  }
  bool closed() {
    const MutexLock lock(mutex_);
    return closed_;
  }
  // Destroys all events. REQUIRES: all their recordings are reached.
  void Close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    for (const device::Event event : std::exchange(all_, {})) {
      driver_->DestroyEvent(event).IgnoreError();  // the device may be lost
    }
    free_.clear();
  }

 private:
  device::Driver* const driver_;
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<device::Event> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<device::Event> all_ ABSL_GUARDED_BY(mutex_);
};

struct Ticket::State {
  enum Phase : int { kPending, kRecorded, kFailed };

  State(std::shared_ptr<EventPool> pool, device::Event event,
        device::Stream stream, int64_t number)
      : pool(std::move(pool)), event(event), stream(stream), number(number) {}
  ~State() {
    if (event.value() != 0) pool->Return(event);
  }

  void Set(Phase next) {
    phase.store(next, std::memory_order_release);
    phase.notify_all();
  }
  bool issued() const {
    return phase.load(std::memory_order_acquire) != kPending;
  }
  // Returns whether the point is reached or has failed, and `if_unknown` if the
  // device cannot tell.
  bool IsReached(bool if_unknown = false) const {
    const int now = phase.load(std::memory_order_acquire);
    return now == kFailed ||
           (now == kRecorded && pool->Reached(event).value_or(if_unknown));
  }
  // Blocks until the event was recorded or recording it has failed.
  Phase AwaitIssued() const {
    phase.wait(kPending, std::memory_order_acquire);
    return static_cast<Phase>(phase.load(std::memory_order_acquire));
  }

  const std::shared_ptr<EventPool> pool;
  const device::Event event;
  const device::Stream stream;  // the stream on which the event is recorded
  // For a request, its position among the engine's requests, from 1 on; for a
  // compute mark, minus the number of UseStream calls before it.
  const int64_t number;
  std::atomic<int> phase{kPending};
};

struct TicketAccess {
  using State = Ticket::State;
  static const std::shared_ptr<State>& StateOf(const Ticket& ticket) {
    return ticket.state_;
  }
  // Makes a state with an event of the pool, not recorded yet.
  static absl::StatusOr<std::shared_ptr<State>> New(
      const std::shared_ptr<EventPool>& pool, device::Stream stream,
      int64_t number) {
    SLUICE_ASSIGN_OR_RETURN(const device::Event event, pool->Take());
    return std::make_shared<State>(pool, event, stream, number);
  }
  static Ticket Make(std::shared_ptr<State> state) {
    Ticket ticket;
    ticket.state_ = std::move(state);
    return ticket;
  }
};

// The requests that one stream has waited for. A copy stream reaches its
// tickets in order, so a wait for a request covers all earlier ones.
class AwaitedRequests {
 public:
  bool Cover(const TicketAccess::State& state) const {
    const auto it = last_.find(state.stream);
    return it != last_.end() && state.number <= it->second;
  }
  void Add(const TicketAccess::State& state) {
    if (state.number > 0) last_[state.stream] = state.number;
  }

 private:
  std::map<device::Stream, int64_t> last_;
};

}  // namespace sluice::client
