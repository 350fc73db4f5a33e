// Which kind of pinned host memory the driver makes, and why not the better
// one.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/driver.h"

namespace sluice::verify {

// {kind, why, granularity}, per NUMA node 0: "HOST_NUMA" is the driver's own,
// "memfd" is pinned by every process that maps it.
absl::StatusOr<nlohmann::json> DescribeHostMemory(
    const device::cuda::LoadedLibrary& library, device::Driver& driver);

}  // namespace sluice::verify
