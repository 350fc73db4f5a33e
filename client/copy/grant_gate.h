// The rank's side of swap-bandwidth grants (proto/base/grant_page.h).
//
// A caller with a copy above the limit naps until the daemon has raised the
// limit. Bytes that are copied over the limit while the daemon is silent are
// forgiven: they delay no later copy. Thread-safe, but only one thread per
// direction may call TellDue and ForgetDue.
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
  // The pages outlive the gate.
  GrantGate(const GrantLimits* limits, int slot, GrantUse* use,
            const Clock* clock);

  // Takes `size` bytes of the direction's limit, and waits until the limit has
  // room or `*cancel` is set. Returns the time waited. While the daemon is
  // silent, the last granted rate paces copies, but only for kGrantPacedFor.
  absl::Duration Acquire(int direction, Bytes size,
                         const std::atomic<bool>* cancel = nullptr) {
    const auto bytes = static_cast<uint64_t>(size.count());
    const uint64_t end =
        used(direction).fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (end <= granted(direction)) [[likely]] {
      ForgetForgiven(direction);
      return absl::ZeroDuration();
    }
    return AcquireSlow(direction, bytes, end, cancel);
  }

  // Returns false and takes nothing where Acquire would wait.
  bool TryAcquire(int direction, Bytes size) {
    const auto bytes = static_cast<uint64_t>(size.count());
    uint64_t before = used(direction).load(std::memory_order_relaxed);
    do {
      if (before + bytes > granted(direction)) return false;
    } while (!used(direction).compare_exchange_weak(before, before + bytes,
                                                    std::memory_order_relaxed));
    ForgetForgiven(direction);
    return true;
  }

  // Takes the bytes even if the limit has no room.
  void Take(int direction, Bytes size) {
    used(direction).fetch_add(size.size(), std::memory_order_relaxed);
  }
  // Returns whether TryAcquire would take the bytes.
  bool HasRoom(int direction, Bytes size) const {
    return used(direction).load(std::memory_order_relaxed) + size.size() <=
           granted(direction);
  }

  // Returns false if the link's speed is unknown, so that there is no limit.
  bool Limits(int direction) const {
    const uint64_t limit = granted(direction);
    const uint64_t now = used(direction).load(std::memory_order_relaxed);
    return limit < now || limit - now < kGrantFar;
  }

  // States until ForgetDue that the next `size` bytes taken in `direction` are
  // one copy, which compute needs at `due` (by this gate's clock). The daemon
  // first lends bandwidth to copies that would be late with a fair share.
  void TellDue(int direction, Bytes size, absl::Time due);
  void ForgetDue(int direction) {
    use_->slot.due_bytes[direction].store(0, std::memory_order_relaxed);
  }
  absl::Time now() const { return clock_->Now(); }

  // Makes copies run ungated. Call it when the session is over, because the
  // limits are no longer raised then.
  void Detach() { detached_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t>& used(int direction) const {
    return use_->slot.used_bytes[direction];
  }
  // The cumulative bytes up to which this rank may start copies.
  uint64_t granted(int direction) const {
    return limits_->slots[slot_].limit_bytes[direction].load(
        std::memory_order_relaxed);
  }
  // Call it when the limit has caught up with the use.
  void ForgetForgiven(int direction) {
    if (forgiven_[direction].load(std::memory_order_relaxed) != 0) {
      forgiven_[direction].store(0, std::memory_order_relaxed);
    }
  }
  absl::Duration AcquireSlow(int direction, uint64_t bytes, uint64_t end,
                             const std::atomic<bool>* cancel);
  // Forgives the bytes by which a copy that ends at `end` exceeds the limit.
  void Forgive(int direction, uint64_t end);
  int64_t NowNs() const { return absl::ToUnixNanos(clock_->Now()); }
  // Reserves time for the bytes; returns when their copy may start, in ns.
  int64_t Book(int direction, uint64_t bytes, double bytes_per_second);

  const GrantLimits* limits_;
  const int slot_;
  GrantUse* use_;
  const Clock* clock_;
  std::atomic<bool> detached_{false};
  // Bytes copied over the limit while the daemon granted nothing.
  std::atomic<uint64_t> forgiven_[2] = {0, 0};
  // When the next copy of each direction may start while the daemon grants
  // nothing.
  Mutex pace_mutex_;
  int64_t free_at_ns_[2] ABSL_GUARDED_BY(pace_mutex_) = {0, 0};
};

}  // namespace sluice::client
