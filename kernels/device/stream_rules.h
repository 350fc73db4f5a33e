// Rules about streams and events that both drivers share. Thread safety: pure
// functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/driver.h"
#include "proto/base/ids.h"

namespace sluice::device {

struct TimedEvent {
  bool timed = false;
  bool recorded = false;
  DeviceIndex device;  // the GPU of the stream that recorded the event
};

inline absl::Status CheckTimes(const TimedEvent& from, const TimedEvent& to) {
  for (const TimedEvent& event : {from, to}) {
    if (!event.timed) {
      return absl::InvalidArgumentError(
          "an event that was made without timing has no time: make it with "
          "CreateTimedEvent");
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

// The handle of GPU 0's compute stream. Handles of other objects count from 1.
inline constexpr uint64_t kComputeStreams = uint64_t{1} << 48;

inline Stream ComputeStreamOf(DeviceIndex device) {
  return Stream(kComputeStreams + device.value());
}

inline bool IsCompute(Stream stream) {
  return stream.value() >= kComputeStreams;
}

// Returns the stream's GPU, which may not exist. REQUIRES: IsCompute(stream).
inline DeviceIndex ComputeGpu(Stream stream) {
  return DeviceIndex(stream.value() - kComputeStreams);
}

}  // namespace sluice::device
