#include "client/copy/grant_gate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "proto/base/status.h"

namespace sluice::client {
namespace {

// The daemon raises limits every 2 ms; a nap is a twentieth of that.
constexpr std::chrono::microseconds kNap{100};

}  // namespace

GrantGate::GrantGate(const GrantLimits* limits, int slot, GrantUse* use,
                     const Clock* clock)
    : limits_(limits), slot_(slot), use_(use), clock_(clock) {
  SLUICE_CHECK(slot >= 0 && slot < kGrantSlots);
}

void GrantGate::TellDue(int direction, Bytes size, absl::Time due) {
  GrantUseSlot& slot = use_->slot;
  const uint64_t before = used(direction).load(std::memory_order_relaxed);
  // The page's value is unsigned: a negative time would be far in the future.
  const int64_t at = std::max<int64_t>(0, absl::ToUnixNanos(due));
  slot.due_ns[direction].store(static_cast<uint64_t>(at),
                               std::memory_order_relaxed);
  slot.due_bytes[direction].store(before + size.size(),
                                  std::memory_order_release);
}

void GrantGate::Forgive(int direction, uint64_t end) {
  const uint64_t given = granted(direction);
  if (end <= given) return;
  uint64_t seen = forgiven_[direction].load(std::memory_order_relaxed);
  while (seen < end - given &&
         !forgiven_[direction].compare_exchange_weak(seen, end - given)) {
  }
}

int64_t GrantGate::Book(int direction, uint64_t bytes,
                        double bytes_per_second) {
  const MutexLock lock(pace_mutex_);
  int64_t& free_at = free_at_ns_[direction];
  const int64_t start = std::max(NowNs(), free_at);
  free_at =
      start + std::llround(static_cast<double>(bytes) / bytes_per_second * 1e9);
  return start;
}

absl::Duration GrantGate::AcquireSlow(int direction, uint64_t bytes,
                                      uint64_t end,
                                      const std::atomic<bool>* cancel) {
  const int64_t began = NowNs();
  std::optional<int64_t> booked;  // when the copy may start at the paced rate
  for (;;) {
    const int64_t now = NowNs();
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) break;
    if (end <= granted(direction) + forgiven_[direction].load()) break;
    // The heartbeat's age; infinite after Detach.
    const auto beat = static_cast<int64_t>(
        limits_->heartbeat_ns.load(std::memory_order_acquire));
    const absl::Duration silent = detached_.load(std::memory_order_relaxed)
                                      ? absl::InfiniteDuration()
                                      : absl::Nanoseconds(now - beat);
    if (silent > kGrantStaleAfter) {
      // In bytes per second; 0: ungated.
      double rate = 0;
      if (silent <= kGrantStaleAfter + kGrantPacedFor) {
        rate = static_cast<double>(
            limits_->slots[slot_].bytes_per_second[direction].load(
                std::memory_order_relaxed));
      }
      if (rate > 0 && !booked) booked = Book(direction, bytes, rate);
      if (rate == 0 || now >= *booked) {
        Forgive(direction, end);
        break;
      }
    }
    std::this_thread::sleep_for(kNap);
  }
  return absl::Nanoseconds(NowNs() - began);
}

}  // namespace sluice::client
