// Measures how fast one GPU copies in one direction. It repeats a copy and
// keeps several copies in flight. Other flows may run at the same time.
// Thread safety: one owner.
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
  // Both ranges stay mapped with access as long as the flow exists. No other
  // flow writes the range that this one reads, or uses the range that it
  // writes.
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
  // Counts the copies completed since the last call and enqueues as many new
  // ones. Returns whether any had completed.
  absl::StatusOr<bool> Go(const Window& window);

  device::CopyDirection direction() const { return range_.direction; }
  // Returns bytes per second, or 0 if not measured yet.
  double rate() const { return rate_; }

 private:
  // Number of copies in flight. Even a fast link takes longer for them than the
  // meter takes to call Go again.
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

// Starts all flows and returns when each is measured. No flow stops earlier,
// because the others would then become faster.
absl::Status MeasureAtOnce(const std::vector<std::unique_ptr<CopyFlow>>& flows,
                           const CopyFlow::Window& window);

}  // namespace sluice::ctl
