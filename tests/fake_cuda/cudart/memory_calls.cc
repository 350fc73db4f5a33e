// cudaMalloc and cudaFree, which torch's own allocator calls. With `malloc=1`
// (settings.h) they create and free memory by calls of the driver. Otherwise
// each call is a finding: a program's lease is all of its GPU memory.
#include <map>

#include "proto/base/mutex.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/cudart/kept.h"
#include "tests/fake_cuda/cudart/runtime.h"

namespace sluice::fake_cuda {
namespace {

struct Block {
  size_t size = 0;
  Context context = nullptr;
};

struct Blocks {
  Mutex mutex;
  std::map<DevicePointer, Block> alive ABSL_GUARDED_BY(mutex);
};

Blocks& TheBlocks() {
  static Blocks* const blocks = new Blocks;
  return *blocks;
}

cudaError_t Refuse(const char* call) {
  fake_cuda_find(
      std::string(call) +
      ": a GPU's memory is the lease, and no other memory is made or "
      "freed (Sluice's own rule)");
  return LastError() = cudaErrorNotSupported;
}

bool IsAllowed() { return fake_cuda_setting("malloc") != 0; }

Result Map(DevicePointer address, size_t size, MemoryHandle memory,
           const Location& where) {
  if (const Result mapped = cuMemMap(address, size, 0, memory, 0)) {
    return mapped;
  }
  const AccessDescription access = {where, kAccessReadWrite};
  return cuMemSetAccess(address, size, &access, 1);
}

Result Make(size_t asked, DevicePointer* address, size_t* size) {
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.location = {kLocationDevice, fake_cuda_current_device()};
  size_t unit = 0;
  if (const Result result = cuMemGetAllocationGranularity(
          &unit, &properties, kGranularityMinimum)) {
    return result;
  }
  *size = (asked + unit - 1) / unit * unit;
  MemoryHandle memory = 0;
  if (const Result result = cuMemCreate(&memory, *size, &properties, 0)) {
    return result;
  }
  Result result = cuMemAddressReserve(address, *size, 0, 0, 0);
  if (result == kSuccess) {
    result = Map(*address, *size, memory, properties.location);
  }
  cuMemRelease(memory);  // the mapping keeps the memory
  return result;
}

Result Free(DevicePointer address, const Block& block) {
  if (const Result result = cuMemUnmap(address, block.size)) return result;
  return cuMemAddressFree(address, block.size);
}

}  // namespace

void FreeKeptMemory() {
  const MutexLock lock(TheBlocks().mutex);
  for (const auto& [address, block] : TheBlocks().alive) {
    cuCtxSetCurrent(block.context);
    cuStreamSynchronize(nullptr);
    Free(address, block);
  }
  TheBlocks().alive.clear();
  cuCtxSetCurrent(nullptr);
}

}  // namespace sluice::fake_cuda

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t asked) {
  if (!IsAllowed()) return Refuse("cudaMalloc");
  if (const Result entered = Enter()) return Told(entered);
  DevicePointer address = 0;
  Block block;
  cuCtxGetCurrent(&block.context);
  if (const Result made = Make(asked, &address, &block.size)) {
    return Told(made);
  }
  const sluice::MutexLock lock(TheBlocks().mutex);
  TheBlocks().alive[address] = block;
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

// The caller has waited for all work that uses the memory; otherwise rule
// UnmapIdle is broken.
cudaError_t cudaFree(void* pointer) {
  if (!IsAllowed()) return Refuse("cudaFree");
  if (const Result entered = Enter()) return Told(entered);
  Block block;
  {
    const sluice::MutexLock lock(TheBlocks().mutex);
    auto& alive = TheBlocks().alive;
    const auto found = alive.find(Driver(pointer));
    if (found == alive.end()) return LastError() = cudaErrorInvalidValue;
    block = found->second;
    alive.erase(found);
  }
  return Told(Free(Driver(pointer), block));
}

}  // extern "C"
