// Loads libcuda.so.1 at run time and converts its errors to absl::Status.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/api.h"
#include "kernels/device/driver.h"
#include "proto/base/shortage.h"

namespace sluice::device::cuda {

// The oldest driver that Sluice supports: 12.2 exports NUMA-placed host memory.
// Kernels that nvcc 13 compiled load with driver 580 (13.0) and newer.
inline constexpr int kOldestDriver = 12020;

// Thread safety: thread-safe after Load.
class LoadedLibrary {
 public:
  // Unavailable, with the reason, if the library is not installed or lacks a
  // function. Calls only dlopen and dlsym. The library is never closed, because
  // the driver runs threads of its own in it.
  static absl::StatusOr<std::unique_ptr<LoadedLibrary>> Load(
      const std::string& path);

  const Functions& functions() const { return functions_; }
  // Returns ok for kSuccess. `call` has the function and the arguments that
  // matter. `memory` marks a failure for lack of memory.
  absl::Status ToStatus(Result result, const std::string& call,
                        Shortage memory = Shortage::kGpuMemory) const;

 private:
  Functions functions_;
};

// The status code of a driver's error (the list in driver.h).
absl::StatusCode CodeOf(Result result);

}  // namespace sluice::device::cuda

// SLUICE_CUDA(cuda_, cuMemRelease, "of 4 MiB", handle) calls the function and
// returns a failure as a Status with the function's name and the remark.
#define SLUICE_CUDA(library, function, remark, ...)                     \
  SLUICE_RETURN_IF_ERROR(                                               \
      (library)->ToStatus((library)->functions().function(__VA_ARGS__), \
                          fmt::format("{} {}", #function, remark)))
