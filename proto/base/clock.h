#pragma once

#include "absl/time/time.h"

namespace sluice {

// Monotonic time, thread-safe. Code that is given a Clock can be tested without
// sleeping (tests/support/fake_clock.h).
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC as an absl::Time. The epoch is arbitrary, so only differences
// are meaningful. Processes of one machine, even of different time namespaces,
// can compare their times; the grant pages rely on that.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// Returns MonotonicClock's time in seconds, for timelines of several processes.
double MonotonicSeconds();

}  // namespace sluice
