// What torch asks about CUDA apart from operators, such as the number of GPUs:
// autograd starts a thread per GPU.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>

#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {
namespace {

// torch looks up this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  // Creates torch's own allocator only if cudaMalloc is allowed.
  void init() const override {
    if (fake_cuda_setting("malloc") == 0) return;
    c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
  }
  bool hasCUDA() const override { return c10::cuda::device_count() > 0; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hasCUDA(); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return fake_cuda_has_context(device);
  }
  c10::DeviceIndex deviceCount() const override {
    return c10::cuda::device_count();
  }
  // torch calls this before it chooses an attention kernel.
  bool hasCuDNN() const override { return false; }
  long versionCuDNN() const override { return 0; }         // NOLINT: torch's
  long versionRuntimeCuDNN() const override { return 0; }  // NOLINT: type
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  c10::DeviceIndex current_device() const override {
    return c10::cuda::current_device();
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return c10::cuda::current_device();
  }
  // Returns the generator of the real libtorch_cuda.so, which Python uses, if
  // that library is loaded (take_over.cc). Otherwise returns a generator that
  // at::manual_seed can seed but that no operator draws from.
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex device) const override {
    using Of = const at::Generator& (*)(c10::DeviceIndex);
    static const auto real = reinterpret_cast<Of>(
        dlsym(RTLD_DEFAULT, "_ZN2at4cuda6detail23getDefaultCUDAGeneratorEa"));
    static const at::Generator none = at::detail::createCPUGenerator();
    return real == nullptr ? none : real(device);
  }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return c10::cuda::CUDACachingAllocator::get();
  }
};

}  // namespace
}  // namespace sluice::fake_cuda

namespace at {
using sluice::fake_cuda::CUDAHooks;
// Takes precedence over the hooks of the real libtorch_cuda.so, if that is
// loaded (take_over.cc).
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks,
                                 c10::REGISTRY_PREFERRED, CUDAHooks)
}  // namespace at
