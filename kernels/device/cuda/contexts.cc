#include "kernels/device/cuda/contexts.h"

#include <fmt/format.h>

#include "proto/base/status.h"

namespace sluice::device::cuda {

Contexts::~Contexts() {
  const MutexLock lock(mutex_);
  for (const auto& [device, context] : contexts_) {
    library_->functions().cuDevicePrimaryCtxRelease_v2(
        devices_[device.value()]);
  }
}

absl::StatusOr<Context> Contexts::Of(DeviceIndex device) {
  if (device.value() >= devices_.size()) {
    return absl::InvalidArgumentError(
        fmt::format("there is no GPU {}; the node has {}", device.value(),
                    devices_.size()));
  }
  const MutexLock lock(mutex_);
  const auto it = contexts_.find(device);
  if (it != contexts_.end()) return it->second;
  Context context = nullptr;
  SLUICE_CUDA(library_, cuDevicePrimaryCtxRetain,
              fmt::format("of GPU {}", device.value()), &context,
              devices_[device.value()]);
  contexts_.emplace(device, context);
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
  return Of(DeviceIndex(0));
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
