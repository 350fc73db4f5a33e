// Measures how fast one GPU copies in one direction, also while other flows
// run. Thread safety: one owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::ctl {

class CopyFlow {
 public:
  // The memory at both addresses must outlive the flow. No other flow may write
  // the memory that this flow reads, or use the memory that this flow writes.
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
  ~CopyFlow() {
    if (stream_.value() != 0) {
      driver_.SynchronizeStream(stream_).IgnoreError();
      driver_.DestroyStream(stream_).IgnoreError();
    }
    for (const device::Event event : events_) {
      if (event.value() != 0) driver_.DestroyEvent(event).IgnoreError();
    }
  }
  CopyFlow(const CopyFlow&) = delete;

  absl::Status Start() {
    SLUICE_ASSIGN_OR_RETURN(stream_, driver_.CreateStream(range_.device));
    for (device::Event& event : events_) {
      SLUICE_ASSIGN_OR_RETURN(event, driver_.CreateEvent());
    }
    begin_ = clock_.Now();
    for (size_t i = 0; i < kAhead; ++i) SLUICE_RETURN_IF_ERROR(Enqueue());
    return absl::OkStatus();
  }
  // Counts the copies completed since the last call, and enqueues as many.
  // Returns whether any copy had completed.
  absl::StatusOr<bool> Go(const Window& window) {
    bool any = false;
    for (size_t i = 0; i < kAhead; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const bool done,
                              driver_.QueryEvent(events_[next_]));
      if (!done) break;
      any = true;
      Count(window);
      SLUICE_RETURN_IF_ERROR(Enqueue());
    }
    return any;
  }

  device::CopyDirection direction() const { return range_.direction; }
  // Returns bytes per second, or 0 if not measured yet.
  double rate() const { return rate_; }

 private:
  // Copies in flight: enough to keep a link busy between two calls of Go.
  static constexpr size_t kAhead = 6;
  static constexpr int kLeastCopies = 8;  // minimum per measured speed

  // Enqueues a copy, and reuses the event of the oldest copy, which has ended.
  absl::Status Enqueue() {
    const bool to_gpu =
        range_.direction == device::CopyDirection::kHostToDevice;
    SLUICE_RETURN_IF_ERROR(driver_.CopyAsync(
        to_gpu ? range_.gpu : range_.host, to_gpu ? range_.host : range_.gpu,
        range_.size, range_.direction, stream_));
    SLUICE_RETURN_IF_ERROR(driver_.RecordEvent(events_[next_], stream_));
    next_ = (next_ + 1) % kAhead;
    return absl::OkStatus();
  }
  void Count(const Window& window) {
    const absl::Time now = clock_.Now();
    if (!counted_from_) {
      if (now - begin_ >= window.warm_up) counted_from_ = now;
      return;
    }
    ++counted_;
    const absl::Duration took = now - *counted_from_;
    if (rate_ > 0 || counted_ < kLeastCopies || took < window.average_over) {
      return;
    }
    rate_ = counted_ * static_cast<double>(range_.size.count()) /
            absl::ToDoubleSeconds(took);
  }

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

// Runs all flows until each is measured. No flow stops earlier, because the
// others would become faster.
inline absl::Status MeasureAtOnce(
    const std::vector<std::unique_ptr<CopyFlow>>& flows,
    const CopyFlow::Window& window) {
  for (const auto& flow : flows) SLUICE_RETURN_IF_ERROR(flow->Start());
  const auto measured = [](const auto& flow) { return flow->rate() > 0; };
  while (!std::ranges::all_of(flows, measured)) {
    bool any = false;
    for (const auto& flow : flows) {
      SLUICE_ASSIGN_OR_RETURN(const bool went, flow->Go(window));
      any |= went;
    }
    if (!any) absl::SleepFor(absl::Microseconds(50));
  }
  return absl::OkStatus();
}

}  // namespace sluice::ctl
