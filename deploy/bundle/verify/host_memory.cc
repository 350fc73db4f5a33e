#include "deploy/bundle/verify/host_memory.h"

#include <fmt/format.h>

#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

using namespace device::cuda;  // NOLINT: the driver's own names

// Allocates and exports one piece of HOST_NUMA memory, as the daemon's driver
// does to probe it.
absl::Status MakeOne(const LoadedLibrary& library) {
  int device = 0, offered = 0;
  SLUICE_CUDA(&library, cuDeviceGet, "0", &device, 0);
  SLUICE_CUDA(&library, cuDeviceGetAttribute, "of HOST_NUMA", &offered,
              kAttributeHostNumaVirtualMemory, device);
  if (offered == 0) {
    return absl::UnimplementedError("the driver offers no HOST_NUMA memory");
  }
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location = {kLocationHostNuma, 0};
  size_t granularity = 0;
  SLUICE_CUDA(&library, cuMemGetAllocationGranularity, "of HOST_NUMA",
              &granularity, &properties, kGranularityMinimum);
  MemoryHandle handle = 0;
  SLUICE_CUDA(&library, cuMemCreate, "of HOST_NUMA", &handle, granularity,
              &properties, 0);
  int fd = -1;
  const absl::Status exported =
      library.ToStatus(library.functions().cuMemExportToShareableHandle(
                           &fd, handle, kHandlePosixFd, 0),
                       "cuMemExportToShareableHandle of HOST_NUMA");
  const UniqueFd closes(fd);
  SLUICE_CUDA(&library, cuMemRelease, "of HOST_NUMA", handle);
  return exported;
}

}  // namespace

absl::StatusOr<nlohmann::json> DescribeHostMemory(const LoadedLibrary& library,
                                                  device::Driver& driver) {
  SLUICE_ASSIGN_OR_RETURN(
      const Bytes granularity,
      driver.Granularity(device::Placement::Host(NumaIndex(0))));
  const absl::Status made = MakeOne(library);
  return nlohmann::json{{"kind", made.ok() ? "HOST_NUMA" : "memfd"},
                        {"why", made.ok() ? "" : std::string(made.message())},
                        {"granularity", granularity.count()}};
}

}  // namespace sluice::verify
