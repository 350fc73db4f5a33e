// Measures how fast one GPU copies in one direction, by repeating a copy with
// some copies in flight. Other flows may run at the same time.
//
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
  // Both ranges stay mapped with access while the flow lives. Nothing else
  // writes what it reads, or reads what it writes.
  struct Range {
    DeviceIndex device;
    device::CopyDirection direction;
    std::byte* gpu = nullptr;
    std::byte* host = nullptr;
    Bytes size;
  };
  struct Window {
    absl::Duration warm_up = absl::Milliseconds(200);  // not counted
    absl::Duration average_over;
  };

  CopyFlow(device::Driver& driver, Range range)
      : driver_(driver), range_(range) {}
  // Waits for its copies.
  ~CopyFlow();
  CopyFlow(const CopyFlow&) = delete;

  // Starts kAhead copies.
  absl::Status Start();
  // Counts the completed copies and enqueues as many. Returns whether there
  // were any.
  absl::StatusOr<bool> Go(const Window& window);

  device::CopyDirection direction() const { return range_.direction; }
  // Bytes per second; 0 if not measured yet.
  double rate() const { return rate_; }

 private:
  // The copies of a stream in flight. Even a fast link needs more time for them
  // than passes between two visits of the meter.
  static constexpr size_t kAhead = 6;

  absl::Status Enqueue();
  void Count(const Window& window);

  device::Driver& driver_;
  const Range range_;
  const MonotonicClock clock_;
  device::Stream stream_;
  std::array<device::Event, kAhead> events_;
  size_t next_ = 0;  // index of the oldest of events_
  absl::Time begin_;
  std::optional<absl::Time> counted_from_;
  int counted_ = 0;
  double rate_ = 0;
};

// Starts all flows and returns when each is measured. None stops earlier,
// because the others would then be faster.
absl::Status MeasureAtOnce(const std::vector<std::unique_ptr<CopyFlow>>& flows,
                           const CopyFlow::Window& window);

}  // namespace sluice::ctl
