// Loads libcuda.so.1 at run time and converts its errors to absl::Status.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/api.h"
#include "proto/base/shortage.h"

namespace sluice::device::cuda {

// CUDA 12.2's driver is the first that exports NUMA-placed host memory. Kernels
// compiled by nvcc 13 need driver 580 (13.0) or newer.
inline constexpr int kOldestDriver = 12020;

// The loaded libcuda. Thread safety: thread-safe after Load.
class LoadedLibrary {
 public:
  // Calls only dlopen and dlsym. The library is never closed, because the
  // driver's threads run in it. Unavailable: no library, or a missing function.
  static absl::StatusOr<std::unique_ptr<LoadedLibrary>> Load(
      const std::string& path);

  const Functions& functions() const { return functions_; }
  // `call` is the function with its important arguments. `memory` says which
  // memory is short if `result` is kOutOfMemory.
  absl::Status ToStatus(Result result, const std::string& call,
                        Shortage memory = Shortage::kGpuMemory) const;

 private:
  Functions functions_;
};

absl::StatusCode CodeOf(Result result);

}  // namespace sluice::device::cuda

// SLUICE_CUDA(cuda_, cuMemRelease, "of 4 MiB", handle) calls the function; if
// it fails, returns a Status with its name and the remark.
#define SLUICE_CUDA(library, function, remark, ...)                     \
  SLUICE_RETURN_IF_ERROR(                                               \
      (library)->ToStatus((library)->functions().function(__VA_ARGS__), \
                          fmt::format("{} {}", #function, remark)))
