#include "client/torch/cuda/region_front.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>

#include <cstdlib>

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
using c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
using c10::cuda::CUDACachingAllocator::RecordContext;
using c10::cuda::CUDACachingAllocator::ShareableHandle;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;

[[noreturn]] void HasNot(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "this process's GPU memory is a region leased from sluiced, which "
      "has no ",
      what);
  std::abort();
}

}  // namespace

void RegionFront::CheckStream(const char* what, cudaStream_t stream) const {
  TORCH_CHECK(stream == stream_.stream(), what,
              " on a stream that is not the compute stream: the region's "
              "blocks are reused in the order of that one alone; make the "
              "other wait for it by events, and keep the tensor until it has");
}

c10::DataPtr RegionFront::allocate(size_t size) {
  TORCH_CHECK(c10::cuda::current_device() == stream_.device_index(),
              "a tensor on another GPU than this process's region, which is "
              "on ",
              stream_.device());
  CheckStream("a tensor is made",
              c10::cuda::getCurrentCUDAStream(stream_.device_index()));
  return region_->allocate(size);
}

void RegionFront::copy_data(void* to, const void* from, size_t size) const {
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice,
                                 stream_.stream()));
}

void* RegionFront::raw_alloc(size_t size) {
  return allocate(size).release_context();
}

void* RegionFront::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  CheckStream("memory is taken", stream);
  return region_->allocate(size).release_context();
}

void RegionFront::recordStream(const c10::DataPtr&, CUDAStream stream) {
  CheckStream("a tensor is used (recordStream)", stream.stream());
}

cudaError_t RegionFront::memcpyAsync(void* to, int to_device, const void* from,
                                     int from_device, size_t size,
                                     cudaStream_t stream, bool) {
  if (to_device != from_device) return cudaErrorNotSupported;
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
}

void RegionFront::setMemoryFraction(double, c10::DeviceIndex) {
  HasNot("fraction of the GPU");
}
void* RegionFront::getBaseAllocation(void*, size_t*) {
  HasNot("allocations to share");
}
SnapshotInfo RegionFront::snapshot(c10::MempoolId_t, bool) {
  HasNot("snapshots");
}
void RegionFront::beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                                      std::function<bool(cudaStream_t)>) {
  HasNot("pools of torch's, nor CUDA graphs");
}
void RegionFront::endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) {
  HasNot("pools of torch's");
}
void RegionFront::releasePool(c10::DeviceIndex, c10::MempoolId_t) {
  HasNot("pools of torch's");
}
ShareableHandle RegionFront::shareIpcHandle(void*) {
  HasNot("tensors for other processes");
}
std::shared_ptr<void> RegionFront::getIpcDevPtr(std::string) {
  HasNot("tensors of other processes");
}
void RegionFront::recordHistory(bool, CreateContextFn, size_t, RecordContext,
                                bool, const std::vector<std::string>&) {
  HasNot("history: sluice-train's --trace shows its blocks");
}
void RegionFront::attachOutOfMemoryObserver(OutOfMemoryObserver) {
  HasNot("observers");
}
void RegionFront::attachAllocatorTraceTracker(AllocatorTraceTracker) {
  HasNot("observers");
}
void RegionFront::enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) {
  HasNot("access from other GPUs");
}
std::shared_ptr<AllocatorState> RegionFront::getCheckpointState(
    c10::DeviceIndex, c10::MempoolId_t) {
  HasNot("states to go back to");
}
CheckpointDelta RegionFront::setCheckpointPoolState(
    c10::DeviceIndex, std::shared_ptr<AllocatorState>) {
  HasNot("states to go back to");
}

}  // namespace sluice::runtime
