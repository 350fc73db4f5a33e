// MergeAttention on the GPU, launched through the device seam.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "kernels/ops/merge.h"

namespace sluice::ops {

// Returns the compiled kernels; empty in a build without CUDA.
std::span<const std::byte> MergeFatbin();

// Thread safety: thread-safe, as the driver is.
class MergeKernel {
 public:
  // `driver` outlives the kernel; the module stays loaded as long as the
  // driver. Unimplemented: the driver runs no kernels (sim), or this is a build
  // without CUDA. Use MergeAttention then.
  static absl::StatusOr<MergeKernel> Load(device::Driver* driver);

  // Enqueues MergeAttention in stream order; all pointers are device pointers.
  // Does nothing if any extent is 0.
  absl::Status Launch(const MergeShape& shape, float* o, float* lse,
                      const float* block_o, const float* block_lse,
                      device::Stream stream) const;
  absl::Status Launch(const MergeShape& shape, float* o, float* lse,
                      const BFloat16* block_o, const float* block_lse,
                      device::Stream stream) const;

 private:
  MergeKernel(device::Driver* driver, device::Function fp32,
              device::Function bf16)
      : driver_(driver), fp32_(fp32), bf16_(bf16) {}

  absl::Status LaunchFunction(device::Function function, MergeShape shape,
                              float* o, float* lse, const void* block_o,
                              const float* block_lse,
                              device::Stream stream) const;

  device::Driver* driver_;
  device::Function fp32_, bf16_;
};

}  // namespace sluice::ops
