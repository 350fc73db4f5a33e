// Measures how fast one GPU copies in one direction, also while other flows
// run. Thread safety: one owner.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"

namespace sluice::ctl {

class CopyFlow {
 public:
  // Both ranges outlive the flow. No other flow writes the one that this flow
  // reads, or uses the one that it writes.
  struct Range {
    DeviceIndex device;
    device::CopyDirection direction;
    std::byte* gpu = nullptr;
    std::byte* host = nullptr;
    Bytes size;
  };
  struct Window {
    // Copies in this time are not counted.
    absl::Duration warm_up = absl::Milliseconds(200);
    absl::Duration average_over;
  };

  CopyFlow(device::Driver& driver, Range range)
      : driver_(driver), range_(range) {}
  // Waits until the flow's copies have ended.
  ~CopyFlow();
  CopyFlow(const CopyFlow&) = delete;

  // Starts kAhead copies.
  absl::Status Start();
  // Counts the copies completed since the last call, and enqueues as many.
  // Returns whether there were any.
  absl::StatusOr<bool> Go(const Window& window);

  device::CopyDirection direction() const { return range_.direction; }
  // Returns bytes per second, or 0 if not measured yet.
  double rate() const { return rate_; }

 private:
  // Even a fast link takes longer for them than the meter between two Go.
  static constexpr size_t kAhead = 6;

  absl::Status Enqueue();
  void Count(const Window& window);

  device::Driver& driver_;
  const Range range_;
  const MonotonicClock clock_;
  device::Stream stream_;
  std::array<device::Event, kAhead> events_;
  size_t next_ = 0;  // index of the oldest copy's event in events_
  absl::Time begin_;
  std::optional<absl::Time> counted_from_;
  int counted_ = 0;
  double rate_ = 0;
};

// Returns when all are measured. None stops earlier: the others would become
// faster.
absl::Status MeasureAtOnce(const std::vector<std::unique_ptr<CopyFlow>>& flows,
                           const CopyFlow::Window& window);

}  // namespace sluice::ctl
