#include "client/torch/backend/backend.h"

#include <fmt/format.h>

#include <array>
#include <atomic>

#include "client/torch/backend/cpu_backend.h"
#include "client/torch/exceptions.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr size_t kMostGpus = 64;
constinit std::array<std::atomic<const Backend*>, kMostGpus> gpus;

size_t SlotOf(at::Device gpu) {
  const auto index = static_cast<size_t>(gpu.index());
  SLUICE_CHECK(gpu.is_cuda() && gpu.has_index() && index < kMostGpus);
  return index;
}

}  // namespace

absl::StatusOr<const Backend*> FindBackend(at::Device device) {
  if (device.is_cpu()) return &CpuBackend();
  if (device.is_cuda() && device.has_index()) {
    const Backend* const backend = gpus[SlotOf(device)];
    if (backend != nullptr) return backend;
  }
  return absl::UnimplementedError(fmt::format(
      "this process has no attention on {}: it computes on cpu, which is where "
      "the memory of a simulated GPU is, and on the GPU whose memory it leased",
      device.str()));
}

absl::Status CheckBackend(at::Device device, at::ScalarType type,
                          int64_t head_dim) {
  SLUICE_ASSIGN_OR_RETURN(const Backend* const backend, FindBackend(device));
  return backend->Check(type, head_dim);
}

const Backend& BackendOf(const at::Tensor& tensor) {
  const auto found = FindBackend(tensor.device());
  ThrowIfError(found.status());
  return **found;
}

void InstallBackend(at::Device gpu, const Backend* backend) {
  gpus[SlotOf(gpu)] = backend;
}

}  // namespace sluice::runtime
