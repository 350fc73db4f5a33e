// Finds out which kind of pinned host memory the driver supports.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/driver.h"

namespace sluice::verify {

// Returns {kind, why, granularity} for NUMA node 0. `kind`: "HOST_NUMA" if the
// driver allocates the memory, or "memfd" if each process that maps it must pin
// it. `why`: the error of HOST_NUMA, or "".
absl::StatusOr<nlohmann::json> DescribeHostMemory(
    const device::cuda::LoadedLibrary& library, device::Driver& driver);

}  // namespace sluice::verify
