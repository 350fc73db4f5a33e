// The handles of compute streams (driver.h, ComputeStream): one scheme for both
// drivers. Their other handles count from 1.
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

// REQUIRES: IsCompute(stream). The device may not exist on this machine.
inline DeviceIndex ComputeGpu(Stream stream) {
  return DeviceIndex(stream.value() - kComputeStreams);
}

}  // namespace sluice::device
