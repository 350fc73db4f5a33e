// The rank's side of swap-bandwidth grants (proto/base/grant_page.h).
//
// How it works. `use` counts the bytes that this rank has started, `limit`
// those that it may have started. A copy that ends at or below the limit starts
// at once. Otherwise the caller sleeps in short naps until the daemon has
// raised the limit. If the daemon's heartbeat is older than kGrantStaleAfter,
// the rank does not wait for it: it keeps its last granted rate for
// kGrantPacedFor, because the daemon may only be late, and then copies ungated.
// Bytes copied over the limit in that time are forgiven.
//
// Thread safety: all methods are thread-safe, except that TellDue and ForgetDue
// of one direction need one thread. The fast path is one atomic operation:
// TryAcquire compares and exchanges, Acquire adds.
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

  // Takes `size` bytes of direction kH2d or kD2h. Waits while the limit is too
  // low and the daemon is alive. Returns the time waited. A true `*cancel` ends
  // the wait; the bytes are taken all the same.
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

  // As Acquire, but returns false and takes nothing if it would have to wait.
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

  // Takes the bytes at once, whatever the limit.
  void Take(int direction, Bytes size) {
    use_->slot.used_bytes[direction].fetch_add(
        static_cast<uint64_t>(size.count()), std::memory_order_relaxed);
  }
  // Returns whether TryAcquire would take the bytes.
  bool HasRoom(int direction, Bytes size) const {
    return use_->slot.used_bytes[direction].load(std::memory_order_relaxed) +
               static_cast<uint64_t>(size.count()) <=
           granted(direction);
  }

  // Returns false if the daemon sets no limit (a link of unknown speed).
  bool Limits(int direction) const {
    const uint64_t limit = granted(direction);
    const uint64_t used =
        use_->slot.used_bytes[direction].load(std::memory_order_relaxed);
    return limit < used || limit - used < kGrantFar;
  }

  // States that the next `size` bytes taken of `direction` are one copy, which
  // compute needs at `due` (of this gate's clock). The daemon lends bandwidth
  // first to copies that a fair share would make late. Replaces the former
  // deadline and holds until ForgetDue. Two stores; one thread per direction.
  void TellDue(int direction, Bytes size, absl::Time due);
  // States that the next copy has no known deadline.
  void ForgetDue(int direction);
  absl::Time now() const { return clock_->Now(); }

  // Call it when the session is over (disconnected, evicted, closing): the
  // limits are not raised any more. Copies then behave as with a stale
  // heartbeat.
  void Detach() { detached_.store(true, std::memory_order_relaxed); }

 private:
  // Pacing of one direction while the daemon grants nothing.
  struct Pace {
    Mutex mutex;
    // When the next copy may start.
    int64_t free_at_ns ABSL_GUARDED_BY(mutex) = 0;
  };

  // The cumulative bytes up to which the daemon lets this rank start copies.
  uint64_t granted(int direction) const {
    return limits_->slots[slot_].limit_bytes[direction].load(
        std::memory_order_relaxed);
  }
  // Drops the forgiven bytes. Call it once the limit has caught up with them.
  void ForgetForgiven(int direction) {
    if (forgiven_[direction].load(std::memory_order_relaxed) != 0) {
      forgiven_[direction].store(0, std::memory_order_relaxed);
    }
  }
  absl::Duration AcquireSlow(int direction, uint64_t bytes, uint64_t end,
                             const std::atomic<bool>* cancel);
  bool Stale(int64_t now_ns) const;
  // The rate while the daemon grants nothing, in bytes per second; 0: ungated.
  double PacedRate(int direction, int64_t now_ns) const;
  // Lets a copy that ends at `end` start although it is over the limit.
  void Forgive(int direction, uint64_t end);
  int64_t NowNs() const;
  // Reserves time for `bytes` at that rate; returns their start in nanoseconds.
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
