// Where tensors are: said wherever one is made, for torch's own default is the
// CPU, whatever the rest of a step is on (tests/layers looks for calls that do
// not say it).
//
// Device tensors are in the rank's HBM; on sim that is the CPU's memory, out of
// the leased region (RegionAllocator). Host tensors are the CPU's everywhere:
// small sums of the ranks, what a seed draws, files. On sim they are in the
// region too, unless a HostScope is open.
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

// Memory with another owner, as a tensor on `device`, where it is.
at::Tensor ViewOf(void* data, at::IntArrayRef sizes, at::ScalarType type,
                  at::Device device);

// With SLUICE_POISON=1: what is not to be read any more reads as NaN
// (all bits set, in fp32, fp64 and bf16), in the order of the device's compute.
void Poison(void* data, int64_t bytes, at::Device device);

// InvalidArgument: `tensor` is elsewhere, by its name and both devices.
absl::Status CheckOn(std::string_view name, const at::Tensor& tensor,
                     at::Device device);

// Torch's device for the memory of GPU `gpu` of a session's node
// (NodeLimits::driver): on sim the CPU.
at::Device DeviceOf(std::string_view driver, DeviceIndex gpu);

}  // namespace sluice::runtime
