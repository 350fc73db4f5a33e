// Time is injected: no code below the wiring in `main` reads a clock itself,
// so tests never sleep (tests/support/fake_clock.h).
#pragma once

#include "absl/time/time.h"

namespace sluice {

// Monotonic time. Thread safety: implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC as an absl::Time (its epoch is the machine's start, so it
// is for differences only). Comparable between processes of one machine, in
// whichever time namespace they are, which the grant pages rely on.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// The same clock in seconds, for timelines that are laid side by side.
double MonotonicSeconds();

}  // namespace sluice
