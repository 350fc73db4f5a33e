// Devices of tensors, and views over memory. Every call that makes a tensor
// names its device, because torch's default is the CPU even if the step runs
// elsewhere (tests/layers finds calls that do not).
//
// Device tensors are in the rank's HBM; on sim this is the CPU's memory, in the
// leased region (RegionAllocator). Host tensors are always on the CPU: small
// sums over ranks, numbers drawn from a seed, the content of files. On sim host
// tensors are in the region too, unless a HostScope is open.
//
// Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/ids.h"
#include "proto/base/units.h"

namespace sluice::runtime {

inline at::TensorOptions On(at::Device device, at::ScalarType type) {
  return at::TensorOptions().device(device).dtype(type);
}
inline at::TensorOptions OnHost(at::ScalarType type) {
  return On(at::kCPU, type);
}

inline Bytes SizeOf(const at::Tensor& tensor) {
  return Bytes(static_cast<int64_t>(tensor.nbytes()));
}

// Returns a tensor over memory of `device`. It does not own the memory.
at::Tensor ViewOf(void* data, at::IntArrayRef sizes, at::ScalarType type,
                  at::Device device);

// Fills memory that must not be read any more with NaN (all bits set), in the
// order of the device's compute. Does nothing without SLUICE_POISON=1.
void Poison(void* data, int64_t bytes, at::Device device);

// InvalidArgument: `tensor` is not on `device`; the error has both and `name`.
absl::Status CheckOn(std::string_view name, const at::Tensor& tensor,
                     at::Device device);

// Returns the CPU if `driver` (NodeLimits::driver) is sim, else GPU `gpu`.
at::Device DeviceOf(std::string_view driver, DeviceIndex gpu);

}  // namespace sluice::runtime
