#include "kernels/device/cuda/contexts.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/status.h"

namespace sluice::device::cuda {

Contexts::~Contexts() {
  const MutexLock lock(mutex_);
  for (const auto& [gpu, context] : contexts_) {
    library_->functions().cuDevicePrimaryCtxRelease_v2(
        gpus_[gpu.value()].device);
  }
}

DeviceIndex Contexts::first() const {
  const auto usable = std::ranges::find_if(
      gpus_, [](const Gpu& gpu) { return gpu.fault.ok(); });
  return DeviceIndex(static_cast<uint64_t>(usable - gpus_.begin()));
}

absl::StatusOr<Device> Contexts::DeviceOf(DeviceIndex gpu) const {
  if (gpu.value() >= gpus_.size()) {
    return absl::InvalidArgumentError(fmt::format(
        "there is no GPU {}; the node has {}", gpu.value(), gpus_.size()));
  }
  const Gpu& found = gpus_[gpu.value()];
  SLUICE_RETURN_IF_ERROR(found.fault);
  return found.device;
}

absl::StatusOr<Context> Contexts::Of(DeviceIndex gpu) {
  SLUICE_ASSIGN_OR_RETURN(const Device device, DeviceOf(gpu));
  const MutexLock lock(mutex_);
  const auto it = contexts_.find(gpu);
  if (it != contexts_.end()) return it->second;
  Context context = nullptr;
  SLUICE_CUDA(library_, cuDevicePrimaryCtxRetain,
              fmt::format("of GPU {}", gpu.value()), &context, device);
  contexts_.emplace(gpu, context);
  return context;
}

absl::StatusOr<Context> Contexts::Any() {
  Context current = nullptr;
  SLUICE_CUDA(library_, cuCtxGetCurrent, "", &current);
  if (current != nullptr) return current;
  {
    const MutexLock lock(mutex_);
    if (!contexts_.empty()) return contexts_.begin()->second;
  }
  return Of(first());
}

absl::StatusOr<ContextScope> ContextScope::Enter(
    const LoadedLibrary* library, absl::StatusOr<Context> context) {
  if (!context.ok()) return context.status();
  SLUICE_CUDA(library, cuCtxPushCurrent_v2, "", *context);
  return ContextScope(library);
}

ContextScope::~ContextScope() {
  if (library_ == nullptr) return;
  Context popped;
  library_->functions().cuCtxPopCurrent_v2(&popped);
}

}  // namespace sluice::device::cuda
