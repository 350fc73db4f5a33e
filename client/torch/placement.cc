#include "client/torch/placement.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "proto/base/poison.h"

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

absl::StatusOr<at::Device> DeviceOf(std::string_view driver, DeviceIndex gpu) {
  if (driver == "sim") return at::Device(at::kCPU);
  if (driver == "cuda") {
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu.value()));
  }
  return absl::UnimplementedError(fmt::format(
      "this build has no tensors in the memory of this node's GPUs (driver "
      "\"{}\"): it knows \"sim\" and \"cuda\"",
      driver));
}

}  // namespace sluice::runtime
