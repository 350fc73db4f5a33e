#include "kernels/device/driver.h"

namespace sluice::device {

absl::StatusOr<std::unique_ptr<Driver>> OpenCudaDriver() {
  return absl::UnavailableError(
      "the cuda driver is not built yet: use the simulated node");
}

}  // namespace sluice::device
