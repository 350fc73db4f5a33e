// A first-fit CUDA allocator for torch in one piece of a GPU's memory. The
// tests of this folder check the fakes, so they do not use the product's
// allocator (client/torch/cuda).
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/base/mutex.h"

namespace sluice::fake_cuda {

class PieceAllocator final
    : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  PieceAllocator(std::byte* begin, size_t size) : begin_(begin), size_(size) {}
  // Installs an allocator for the rest of the process's life.
  static void Install(std::byte* begin, size_t size);

  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void*, const void*, size_t) const override { None(); }
  void* raw_alloc(size_t size) override { return Take(size); }
  void* raw_alloc_with_stream(size_t size, cudaStream_t) override {
    return Take(size);
  }
  void raw_delete(void* pointer) override { Free(pointer); }
  void init(int) override {}
  bool initialized() override { return true; }
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override { None(); }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex, size_t* largest) override { *largest = 0; }
  void* getBaseAllocation(void*, size_t*) override { None(); }
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {
    None();
  }
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t,
                                                         bool) override {
    None();
  }
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override {
    None();
  }
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override {
    None();
  }
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override { None(); }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(
      void*) override {
    None();
  }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { None(); }
  void recordHistory(bool, c10::cuda::CUDACachingAllocator::CreateContextFn,
                     size_t, c10::cuda::CUDACachingAllocator::RecordContext,
                     bool, const std::vector<std::string>&) override {}
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver) override {}
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker) override {}
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override { None(); }
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t,
                          bool) override {
    None();
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>
  getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) override {
    None();
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>)
      override {
    None();
  }
  std::string name() override { return "a piece"; }
  void emptyCache(c10::MempoolId_t) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

 private:
  static void Free(void* pointer);
  [[noreturn]] static void None();
  void* Take(size_t size);
  void Give(void* pointer);

  std::byte* const begin_;
  const size_t size_;
  Mutex mutex_;
  std::map<size_t, size_t> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::fake_cuda
