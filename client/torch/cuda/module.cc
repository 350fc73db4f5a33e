// Exports sluice_torch_cuda, which returns a TorchCuda
// (client/torch/memory/torch_cuda.h).

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/torch/memory/torch_cuda.h"

// Declared in ATen/cuda/CUDAContextLight.h, which needs more headers than the
// runtime's; defined in libtorch_cuda, which LoadTorchCuda opens first.
namespace at::cuda {
void clearCublasWorkspaces();
}

namespace sluice::runtime {

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
              "torch's allocator changes from version to version: read "
              "CUDACachingAllocator.h of this one against RegionFront");

namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDACachingAllocator::AllocatorState;
using c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;
using c10::cuda::CUDACachingAllocator::CreateContextFn;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
using c10::cuda::CUDACachingAllocator::RecordContext;
using c10::cuda::CUDACachingAllocator::ShareableHandle;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;
using c10::cuda::CUDACachingAllocator::StreamSegmentSize;

[[noreturn]] void HasNot(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "this process's GPU memory is a region leased from sluiced, which "
      "has no ",
      what);
  std::abort();
}

// Makes a region torch's CUDA allocator. A call that a region does not support
// throws an error that names the call. To ignore the call could corrupt memory:
// for example, another stream may use a block that the plan reuses next.
//
// Thread safety: the region's; one thread at a time installs and removes it.
class RegionFront final : public CUDAAllocator {
 public:
  // Blocks are reused in the order of `stream`. `former` is torch's allocator
  // before and after this one, and outlives it.
  RegionFront(c10::Allocator* region, CUDAStream stream, CUDAAllocator* former)
      : region_(region), stream_(stream), former_(former) {}

  CUDAStream stream() const { return stream_; }

  c10::DataPtr allocate(size_t size) override {
    TORCH_CHECK(c10::cuda::current_device() == stream_.device_index(),
                "a tensor on another GPU than this process's region, which is "
                "on ",
                stream_.device());
    CheckStream("a tensor is made",
                c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    return region_->allocate(size);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return region_->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice,
                                   stream_.stream()));
  }

  void* raw_alloc(size_t size) override {
    return allocate(size).release_context();
  }

  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    CheckStream("memory is taken", stream);
    return region_->allocate(size).release_context();
  }

  void raw_delete(void* block) override { raw_deleter()(block); }

  void recordStream(const c10::DataPtr&, CUDAStream stream) override {
    CheckStream("a tensor is used (recordStream)", stream.stream());
  }

  cudaError_t memcpyAsync(void* to, int to_device, const void* from,
                          int from_device, size_t size, cudaStream_t stream,
                          bool) override {
    if (to_device != from_device) return cudaErrorNotSupported;
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
  }

  // Torch calls this once, and uses the former allocator again after Remove.
  void init(int gpus) override { former_->init(gpus); }
  bool initialized() override { return true; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  std::string name() override { return "sluice"; }
  // The process already owns all of the region, and nothing is cached.
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void cacheInfo(c10::DeviceIndex, size_t* largest) override { *largest = 0; }
  void emptyCache(c10::MempoolId_t) override {}
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex) override {
    return {};
  }
  // Returns no numbers: RegionAllocator::stats() has them.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  bool isHistoryEnabled() override { return false; }

  void setMemoryFraction(double, c10::DeviceIndex) override {
    HasNot("fraction of the GPU");
  }

  void* getBaseAllocation(void*, size_t*) override {
    HasNot("allocations to share");
  }

  SnapshotInfo snapshot(c10::MempoolId_t, bool) override {
    HasNot("snapshots");
  }

  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override {
    HasNot("pools of torch's, nor CUDA graphs");
  }

  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override {
    HasNot("pools of torch's");
  }

  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override {
    HasNot("pools of torch's");
  }

  ShareableHandle shareIpcHandle(void*) override {
    HasNot("tensors for other processes");
  }

  std::shared_ptr<void> getIpcDevPtr(std::string) override {
    HasNot("tensors of other processes");
  }

  void recordHistory(bool, CreateContextFn, size_t, RecordContext, bool,
                     const std::vector<std::string>&) override {
    HasNot("history: sluice-train's --trace shows its blocks");
  }

  void attachOutOfMemoryObserver(OutOfMemoryObserver) override {
    HasNot("observers");
  }

  void attachAllocatorTraceTracker(AllocatorTraceTracker) override {
    HasNot("observers");
  }

  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {
    HasNot("access from other GPUs");
  }

  std::shared_ptr<AllocatorState> getCheckpointState(
      c10::DeviceIndex, c10::MempoolId_t) override {
    HasNot("states to go back to");
  }

  CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex, std::shared_ptr<AllocatorState>) override {
    HasNot("states to go back to");
  }

 private:
  void CheckStream(const char* what, cudaStream_t stream) const {
    TORCH_CHECK(
        stream == stream_.stream(), what,
        " on a stream that is not the compute stream: the region's "
        "blocks are reused in the order of the compute stream alone; make the "
        "other stream wait for it by events, and keep the tensor until then");
  }

  c10::Allocator* const region_;
  const CUDAStream stream_;
  CUDAAllocator* const former_;
};

// Torch replaces a device's allocator only by one of at least its priority.
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
  // Fill needs its stream for blocks that are freed after Remove.
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
