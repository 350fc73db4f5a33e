// Checks for both drivers that a time between two events exists (driver.h,
// ElapsedTime).
#pragma once

#include <fmt/format.h>

#include "absl/status/status.h"
#include "proto/base/ids.h"

namespace sluice::device {

struct TimedEvent {
  bool timed = false;
  bool recorded = false;
  DeviceIndex device;  // of the stream that recorded the event
};

inline absl::Status CheckTimes(const TimedEvent& from, const TimedEvent& to) {
  for (const TimedEvent& event : {from, to}) {
    if (!event.timed) {
      return absl::InvalidArgumentError(
          "an event that was made without timing has no time: "
          "CreateTimedEvent makes one that has");
    }
    if (!event.recorded) {
      return absl::InvalidArgumentError(
          "an event that was never recorded has no time");
    }
  }
  if (from.device == to.device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("events of GPU {} and GPU {} have no time between them",
                  from.device.value(), to.device.value()));
}

}  // namespace sluice::device
