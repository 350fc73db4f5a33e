// Handles of compute streams (ComputeStream in driver.h), numbered the same way
// by both drivers. Their other handles count from 1.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "kernels/device/driver.h"

namespace sluice::device {

inline constexpr uint64_t kComputeStreams = uint64_t{1} << 48;

inline Stream ComputeStreamOf(DeviceIndex device) {
  return Stream(kComputeStreams + device.value());
}

inline bool IsCompute(Stream stream) {
  return stream.value() >= kComputeStreams;
}

// Returns the stream's GPU, which may not exist on this machine. REQUIRES:
// IsCompute(stream).
inline DeviceIndex ComputeGpu(Stream stream) {
  return DeviceIndex(stream.value() - kComputeStreams);
}

}  // namespace sluice::device
