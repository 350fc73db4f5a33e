// Makes a region torch's CUDA allocator.
//
// Torch asks its CUDA allocator for far more than memory. Calls that a region
// supports are passed on to it. Any other call throws an error that names the
// call, because ignoring it would be silently wrong: for example another
// stream's use of a block that the plan reuses next.
//
// Pinned to torch 2.11, since it extends torch's class.
//
// Thread safety: the region's own; Install and Remove by one thread at a time.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice::runtime {

class RegionFront final
    : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  // Blocks are reused in the order of `stream`. `former` is torch's allocator
  // before and after this one, and outlives it.
  RegionFront(c10::Allocator* region, c10::cuda::CUDAStream stream,
              c10::cuda::CUDACachingAllocator::CUDAAllocator* former)
      : region_(region), stream_(stream), former_(former) {}

  c10::cuda::CUDAStream stream() const { return stream_; }

  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override {
    return region_->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t size) const override;
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* block) override { raw_deleter()(block); }
  void recordStream(const c10::DataPtr& block,
                    c10::cuda::CUDAStream stream) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from,
                          int from_device, size_t size, cudaStream_t stream,
                          bool peers) override;

  // Torch calls it once, at its first use of a GPU. The former allocator must
  // receive the call, since torch uses it again afterwards.
  void init(int gpus) override { former_->init(gpus); }
  bool initialized() override { return true; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  std::string name() override { return "sluice"; }
  // The process already owns all of the region, and nothing is cached.
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void cacheInfo(c10::DeviceIndex, size_t* largest) override { *largest = 0; }
  void emptyCache(c10::MempoolId_t) override {}
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex) override {
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

  void setMemoryFraction(double, c10::DeviceIndex) override;
  void* getBaseAllocation(void*, size_t*) override;
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t,
                                                         bool) override;
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override;
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override;
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(
      void*) override;
  std::shared_ptr<void> getIpcDevPtr(std::string) override;
  void recordHistory(bool, c10::cuda::CUDACachingAllocator::CreateContextFn,
                     size_t, c10::cuda::CUDACachingAllocator::RecordContext,
                     bool, const std::vector<std::string>&) override;
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver) override;
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker) override;
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>
      getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>)
      override;

 private:
  // Throws unless `stream` is stream_: the region relies on that order.
  void CheckStream(const char* what, cudaStream_t stream) const;

  c10::Allocator* const region_;
  const c10::cuda::CUDAStream stream_;
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const former_;
};

}  // namespace sluice::runtime
