// Exports the module's one symbol: TorchCuda
// (client/torch/memory/torch_cuda.h).
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "client/torch/cuda/region_front.h"
#include "client/torch/memory/torch_cuda.h"

// Declared in ATen/cuda/CUDAContextLight.h, which needs more headers than the
// runtime's; defined in libtorch_cuda, opened before this (LoadTorchCuda).
namespace at::cuda {
void clearCublasWorkspaces();
}

namespace sluice::runtime {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// Torch accepts a device's next allocator only with at least this priority.
constexpr uint8_t kPriority = 100;

class Module final : public TorchCuda {
 public:
  void SetDevice(c10::DeviceIndex device) override {
    c10::cuda::set_device(device);
  }

  void* CurrentStream(c10::DeviceIndex device) const override {
    return c10::cuda::getCurrentCUDAStream(device).stream();
  }

  void SetCurrentStream(c10::DeviceIndex device, void* stream) override {
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(
        static_cast<cudaStream_t>(stream), device));
  }

  void Install(c10::Allocator* region, c10::Device device) override {
    TORCH_CHECK(front_ == nullptr, "a region is installed already");
    former_ = c10::cuda::CUDACachingAllocator::get();
    front_ = std::make_unique<RegionFront>(
        region, c10::cuda::getCurrentCUDAStream(device.index()), former_);
    Set(front_.get());
  }

  void Remove() override {
    Set(former_);
    retired_ = std::move(front_);
  }

  void DropWorkspaces() override { at::cuda::clearCublasWorkspaces(); }

  void Fill(void* to, uint8_t value, size_t size) const override {
    const RegionFront* front = front_ ? front_.get() : retired_.get();
    if (front == nullptr) return;
    // A block's deleter calls this, so a throw would end the process.
    C10_CUDA_IGNORE_ERROR(cudaMemsetAsync(to, value, size, front->stream()));
  }

 private:
  // Sets torch's allocator in both places from which torch reads it.
  static void Set(CUDAAllocator* allocator) {
    c10::cuda::CUDACachingAllocator::allocator.store(allocator);
    c10::SetAllocator(c10::kCUDA, allocator, kPriority);
  }

  std::unique_ptr<RegionFront> front_;
  // Blocks may be freed after Remove, in the order of its stream.
  std::unique_ptr<RegionFront> retired_;
  CUDAAllocator* former_ = nullptr;
};

}  // namespace
}  // namespace sluice::runtime

extern "C" __attribute__((visibility("default"))) sluice::runtime::TorchCuda*
sluice_torch_cuda() {
  static auto* module = new sluice::runtime::Module;  // never destroyed
  return module;
}
