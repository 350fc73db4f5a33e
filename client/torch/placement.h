// Says where tensors are. Every call that makes a tensor names its device,
// because torch's default is the CPU wherever the rest of a step runs
// (tests/layers finds calls that do not).
//
// Device tensors are in the rank's HBM; on sim this is the CPU's memory, in the
// leased region (RegionAllocator). Host tensors are always the CPU's: small
// sums over ranks, what a seed draws, files. On sim they are in the region too,
// unless a HostScope is open.
//
// Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/ids.h"

namespace sluice::runtime {

inline at::TensorOptions On(at::Device device, at::ScalarType type) {
  return at::TensorOptions().device(device).dtype(type);
}
inline at::TensorOptions OnHost(at::ScalarType type) {
  return On(at::kCPU, type);
}

// Returns a tensor over memory that has another owner and is on `device`.
at::Tensor ViewOf(void* data, at::IntArrayRef sizes, at::ScalarType type,
                  at::Device device);

// With SLUICE_POISON=1, fills memory that must not be read any more with NaN
// (all bits set, in fp32, fp64 and bf16), in the order of the device's compute.
void Poison(void* data, int64_t bytes, at::Device device);

// InvalidArgument: `tensor` is on another device; names it and both devices.
absl::Status CheckOn(std::string_view name, const at::Tensor& tensor,
                     at::Device device);

// Returns torch's device for GPU `gpu` of a session's node
// (NodeLimits::driver); on sim the CPU.
at::Device DeviceOf(std::string_view driver, DeviceIndex gpu);

}  // namespace sluice::runtime
