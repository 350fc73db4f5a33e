#include "client/torch/placement.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "proto/base/poison.h"
#include "proto/base/simulated.h"

namespace sluice::runtime {

at::Tensor ViewOf(void* data, at::IntArrayRef sizes, at::ScalarType type,
                  at::Device device) {
  return at::for_blob(data, sizes)
      .options(On(device, type))
      .target_device(device)
      .make_tensor();
}

void Poison(void* data, int64_t bytes, at::Device device) {
  if (PoisonsBuffers() && bytes > 0) {
    ViewOf(data, {bytes}, at::kByte, device).fill_(0xff);
  }
}

absl::Status CheckOn(std::string_view name, const at::Tensor& tensor,
                     at::Device device) {
  if (tensor.device() == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} must be on {}, where the step is, and are on {}", name,
                  device.str(), tensor.device().str()));
}

at::Device DeviceOf(std::string_view driver, DeviceIndex gpu) {
  return IsSimulated(driver)
             ? at::Device(at::kCPU)
             : at::Device(at::kCUDA,
                          static_cast<c10::DeviceIndex>(gpu.value()));
}

}  // namespace sluice::runtime
