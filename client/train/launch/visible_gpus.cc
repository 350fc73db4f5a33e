#include "client/train/launch/visible_gpus.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/device/driver.h"
#include "proto/base/status.h"

namespace sluice::train {

absl::StatusOr<std::vector<client::GpuState>> ListVisibleGpus(
    const std::string& socket) {
  SLUICE_ASSIGN_OR_RETURN(auto gpus, client::ListGpus(socket));
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) return gpus;
  const auto driver = device::OpenCudaDriver();
  // If CUDA does not start, the GPUs are simulated, or a rank reports the
  // error.
  if (!driver.ok()) return gpus;
  SLUICE_ASSIGN_OR_RETURN(const auto seen, (*driver)->Devices());
  const auto is_here = [&](const std::string& uuid) {
    return std::ranges::any_of(seen, [&](const device::DeviceInfo& info) {
      return info.uuid == uuid;
    });
  };
  if (std::ranges::any_of(gpus,
                          [&](const auto& g) { return is_here(g.uuid); })) {
    std::erase_if(gpus, [&](const auto& g) { return !is_here(g.uuid); });
  }
  return gpus;
}

}  // namespace sluice::train
