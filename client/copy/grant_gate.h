// The rank's side of swap-bandwidth grants (proto/base/grant_page.h).
//
// How it works. `use` counts the bytes this rank has started, `limit` those it
// may have started; a copy that ends at or below the limit goes. Beyond it the
// caller sleeps in short naps until the daemon has raised the limit. If the
// daemon's heartbeat is older than kGrantStaleAfter, the rank does not wait: it
// keeps the rate it was granted last for kGrantPacedFor, because a daemon that
// is only late comes back, and then goes ungated. Bytes copied over the limit
// in that time are forgiven.
//
// Thread safety: all methods are safe from several threads, but TellDue and
// ForgetDue of one direction. The fast path is one atomic operation: TryAcquire
// compares and exchanges, Acquire adds.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/base/clock.h"
#include "proto/base/grant_page.h"
#include "proto/base/mutex.h"
#include "proto/base/units.h"

namespace sluice::client {

class GrantGate {
 public:
  // Pages outlive the gate.
  GrantGate(const GrantLimits* limits, int slot, GrantUse* use,
            const Clock* clock);

  // Takes `size` bytes of direction kH2d or kD2h, waiting while the limit is
  // behind and the daemon is alive. Returns the time waited. A true `*cancel`
  // ends the wait (the bytes are taken all the same).
  absl::Duration Acquire(int direction, Bytes size,
                         const std::atomic<bool>* cancel = nullptr) {
    const auto bytes = static_cast<uint64_t>(size.count());
    const uint64_t end = use_->slot.used_bytes[direction].fetch_add(
                             bytes, std::memory_order_relaxed) +
                         bytes;
    if (end <= granted(direction)) [[likely]] {
      ForgetForgiven(direction);
      return absl::ZeroDuration();
    }
    return AcquireSlow(direction, bytes, end, cancel);
  }

  // Acquire where it need not wait; false, and nothing taken, where it would.
  bool TryAcquire(int direction, Bytes size) {
    const auto bytes = static_cast<uint64_t>(size.count());
    auto& used = use_->slot.used_bytes[direction];
    uint64_t before = used.load(std::memory_order_relaxed);
    do {
      if (before + bytes > granted(direction)) return false;
    } while (!used.compare_exchange_weak(before, before + bytes,
                                         std::memory_order_relaxed));
    ForgetForgiven(direction);
    return true;
  }

  // Takes them at once, whatever the limit.
  void Take(int direction, Bytes size) {
    use_->slot.used_bytes[direction].fetch_add(
        static_cast<uint64_t>(size.count()), std::memory_order_relaxed);
  }
  // Whether TryAcquire would take them.
  bool HasRoom(int direction, Bytes size) const {
    return use_->slot.used_bytes[direction].load(std::memory_order_relaxed) +
               static_cast<uint64_t>(size.count()) <=
           granted(direction);
  }

  // False where nothing is limited, nor shared by limits.
  bool Limits(int direction) const {
    const uint64_t limit = granted(direction);
    const uint64_t used =
        use_->slot.used_bytes[direction].load(std::memory_order_relaxed);
    return limit < used || limit - used < kGrantFar;
  }

  // The next `size` bytes of `direction` to be taken are one copy, which
  // compute needs at `due` (of this gate's clock): the daemon lends bandwidth
  // first to copies that a fair share would make late. Replaces the last one
  // and stands until ForgetDue. Two stores; one thread per direction.
  void TellDue(int direction, Bytes size, absl::Time due);
  // The next copy has no known deadline.
  void ForgetDue(int direction);
  absl::Time now() const { return clock_->Now(); }

  // The session is over (disconnected, evicted, closing): the limits are not
  // raised any more. Waiting and later calls go on as with a stale heartbeat.
  void Detach() { detached_.store(true, std::memory_order_relaxed); }

 private:
  // Pacing of one direction while the daemon grants nothing.
  struct Pace {
    Mutex mutex;
    // When the next copy may start.
    int64_t free_at_ns ABSL_GUARDED_BY(mutex) = 0;
  };

  // Up to which byte the daemon lets this rank start copies.
  uint64_t granted(int direction) const {
    return limits_->slots[slot_].limit_bytes[direction].load(
        std::memory_order_relaxed);
  }
  // Drops the forgiven bytes once the daemon's limit has caught up with them.
  void ForgetForgiven(int direction) {
    if (forgiven_[direction].load(std::memory_order_relaxed) != 0) {
      forgiven_[direction].store(0, std::memory_order_relaxed);
    }
  }
  absl::Duration AcquireSlow(int direction, uint64_t bytes, uint64_t end,
                             const std::atomic<bool>* cancel);
  bool Stale(int64_t now_ns) const;
  // Bytes per second to keep to while the daemon grants nothing; 0: ungated.
  double PacedRate(int direction, int64_t now_ns) const;
  // Lets `end` pass though it is over the limit.
  void Forgive(int direction, uint64_t end);
  int64_t NowNs() const;
  // Books `bytes` at that rate. Returns when they may start, in nanoseconds.
  int64_t Book(int direction, uint64_t bytes, double bytes_per_second);

  const GrantLimits* limits_;
  const int slot_;
  GrantUse* use_;
  const Clock* clock_;
  std::atomic<bool> detached_{false};
  // Bytes copied over the limit while the daemon granted nothing.
  std::atomic<uint64_t> forgiven_[2] = {0, 0};
  Pace pace_[2];
};

}  // namespace sluice::client
