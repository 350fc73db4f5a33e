// Time is injected: only the wiring in `main` reads a clock, so tests never
// sleep (tests/support/fake_clock.h).
#pragma once

#include "absl/time/time.h"

namespace sluice {

// Monotonic time. Thread safety: implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC as an absl::Time. Its epoch is the machine's start, so it is
// for differences only. Times compare between processes of one machine, also of
// different time namespaces; the grant pages rely on that.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// The same clock in seconds, to compare timelines of several processes.
double MonotonicSeconds();

}  // namespace sluice
