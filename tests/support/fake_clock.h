// A clock that tests advance by hand.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/base/clock.h"

namespace sluice::testing {

// Thread safety: thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1000))
      : now_ns_(absl::ToUnixNanos(start)) {}

  absl::Time Now() const override {
    return absl::FromUnixNanos(now_ns_.load(std::memory_order_acquire));
  }
  void Advance(absl::Duration by) {
    now_ns_.fetch_add(absl::ToInt64Nanoseconds(by), std::memory_order_acq_rel);
  }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace sluice::testing
