// libcuda.so.1, opened at run time, and its errors as absl::Status.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/api.h"
#include "kernels/device/driver.h"
#include "proto/base/shortage.h"

namespace sluice::device::cuda {

// The oldest driver Sluice takes: 12.2 exports NUMA-placed host memory. Kernels
// that nvcc 13 compiled load from driver 580 (13.0) on.
inline constexpr int kOldestDriver = 12020;

// Thread safety: thread-safe after Load.
class LoadedLibrary {
 public:
  // Unavailable with the reason: not installed, or a function is missing.
  // Calls nothing but dlopen and dlsym. The library is never closed: the
  // driver has threads of its own in it.
  static absl::StatusOr<std::unique_ptr<LoadedLibrary>> Load(
      const std::string& path);

  const Functions& functions() const { return functions_; }
  // Ok for kSuccess. `call`: the function and the arguments that matter.
  // `memory`: what a failure for lack of memory is marked with.
  absl::Status ToStatus(Result result, const std::string& call,
                        Shortage memory = Shortage::kGpuMemory) const;

 private:
  Functions functions_;
};

// What a driver's error means to the layers above (the list in driver.h).
absl::StatusCode CodeOf(Result result);

}  // namespace sluice::device::cuda

// SLUICE_CUDA(cuda_, cuMemRelease, "of 4 MiB", handle): calls, and returns a
// failure as Status with the function's name and the remark.
#define SLUICE_CUDA(library, function, remark, ...)                     \
  SLUICE_RETURN_IF_ERROR(                                               \
      (library)->ToStatus((library)->functions().function(__VA_ARGS__), \
                          fmt::format("{} {}", #function, remark)))
