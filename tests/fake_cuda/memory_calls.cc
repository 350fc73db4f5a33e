// Calls for physical memory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/exports.h"

namespace sluice::fake_cuda {

constexpr int kNobodysCount = 1000;

bool IsOnDevice(const Location& where) { return where.type == kLocationDevice; }

size_t GranularityOf(World& world, const Location& where) {
  return static_cast<size_t>(world.settings.Get(IsOnDevice(where)
                                                    ? "gpu_granularity_kib"
                                                    : "host_granularity_kib"))
         << 10;
}

namespace {

// Returns whether memory of these properties may be requested; if not,
// call.result() is the error.
bool CheckProperties(Call& call, const AllocationProperties* properties) {
  if (properties == nullptr || properties->type != kAllocationPinned ||
      properties->win32 != nullptr ||
      std::any_of(std::begin(properties->flags.reserved),
                  std::end(properties->flags.reserved),
                  [](unsigned char c) { return c != 0; })) {
    call.Refuse(Rule::kProperties);
    return false;
  }
  const Location& where = properties->location;
  if (properties->flags.rdma != 0 &&
      (!IsOnDevice(where) || TheWorld().settings.Get("rdma") == 0)) {
    call.Refuse(Rule::kProperties, "gpuDirectRDMACapable");
    return false;
  }
  if (IsOnDevice(where)) return call.CheckDevice(where.id);
  const std::string node =
      fmt::format("/sys/devices/system/node/node{}", where.id);
  if (where.type != kLocationHostNuma ||
      (where.id != 0 && access(node.c_str(), F_OK) != 0)) {
    call.Refuse(Rule::kProperties, "location");
    return false;
  }
  return true;
}

// Sleeps as long as pinning takes, without the world's lock.
void Pin(size_t size, const AllocationProperties* properties) {
  if (properties == nullptr || IsOnDevice(properties->location)) return;
  int64_t ms_per_gib = 0;
  {
    const MutexLock lock(TheWorld().mutex);
    ms_per_gib = TheWorld().settings.Get("pin_ms_per_gib");
  }
  std::this_thread::sleep_for(std::chrono::microseconds(
      static_cast<int64_t>(size >> 20) * ms_per_gib * 1000 / 1024));
}

bool Offered(const AllocationProperties& properties) {
  return IsOnDevice(properties.location) ||
         TheWorld().settings.Get("host_numa") != 0;
}

}  // namespace
}  // namespace sluice::fake_cuda

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  Call call("cuMemGetInfo_v2", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, free != nullptr && total != nullptr, kArguments);
  World& world = TheWorld();
  const size_t used =
      world.store.Used({kLocationDevice, call.context()->device});
  *total = static_cast<size_t>(world.settings.Get("memory_mib")) << 20;
  *free = *total - std::min(used, *total);
  return kSuccess;
}

Result cuMemGetAllocationGranularity(size_t* bytes,
                                     const AllocationProperties* properties,
                                     int option) {
  Call call("cuMemGetAllocationGranularity", Needs::kInitialised);
  if (call.failed() || !CheckProperties(call, properties)) {
    return call.result();
  }
  SLUICE_FAKE_REQUIRE(call, bytes != nullptr && (option == 0 || option == 1),
                      kArguments);
  if (!Offered(*properties)) return kNotSupported;
  *bytes = GranularityOf(TheWorld(), properties->location);
  return kSuccess;
}

Result cuMemCreate(MemoryHandle* handle, size_t size,
                   const AllocationProperties* properties,
                   unsigned long long flags) {
  Pin(size, properties);
  Call call("cuMemCreate", Needs::kInitialised);
  if (call.failed() || !CheckProperties(call, properties)) {
    return call.result();
  }
  SLUICE_FAKE_REQUIRE(call, handle != nullptr && flags == 0, kArguments);
  if (!Offered(*properties)) return kNotSupported;
  World& world = TheWorld();
  const Location& where = properties->location;
  SLUICE_FAKE_REQUIRE(call, size > 0 && size % GranularityOf(world, where) == 0,
                      kGranularity);
  const auto limit = static_cast<size_t>(world.settings.Get(
                         IsOnDevice(where) ? "memory_mib" : "host_memory_mib"))
                     << 20;
  AllocationPointer made;
  const Result result = world.store.Create(
      where, size, limit, (properties->handle_types & kHandlePosixFd) != 0,
      world.settings.Get("dirty") != 0, made);
  if (result != kSuccess) return result;
  *handle = reinterpret_cast<MemoryHandle>(world.NewHandle<void*>());
  world.handles[*handle] = std::move(made);
  world.rdma_memories += properties->flags.rdma;
  return kSuccess;
}

Result cuMemRelease(MemoryHandle handle) {
  Call call("cuMemRelease", Needs::kInitialised, Call::kReleases);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, TheWorld().handles.erase(handle) == 1, kLiveHandle);
  return call.Done();
}

Result cuMemExportToShareableHandle(void* descriptor, MemoryHandle handle,
                                    int type, unsigned long long flags) {
  Call call("cuMemExportToShareableHandle", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(
      call, descriptor != nullptr && type == kHandlePosixFd && flags == 0,
      kArguments);
  const auto it = TheWorld().handles.find(handle);
  SLUICE_FAKE_REQUIRE(call, it != TheWorld().handles.end(), kLiveHandle);
  SLUICE_FAKE_REQUIRE(call, it->second->exportable, kMadeForExport);
  SLUICE_FAKE_REQUIRE(call, !it->second->imported, kExportOwn);
  const int fd = Store::Export(*it->second);
  if (fd < 0) return kOperatingSystem;
  *static_cast<int*>(descriptor) = fd;
  return kSuccess;
}

Result cuMemImportFromShareableHandle(MemoryHandle* handle, void* descriptor,
                                      int type) {
  Call call("cuMemImportFromShareableHandle", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, handle != nullptr && type == kHandlePosixFd,
                      kArguments);
  AllocationPointer memory =
      Store::Import(static_cast<int>(reinterpret_cast<intptr_t>(descriptor)));
  // Descriptors come from other processes, so a bad one breaks no rule.
  if (memory == nullptr) return kInvalidValue;
  World& world = TheWorld();
  *handle = reinterpret_cast<MemoryHandle>(world.NewHandle<void*>());
  world.handles[*handle] = std::move(memory);
  return kSuccess;
}

Result cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties,
                                              MemoryHandle handle) {
  Call call("cuMemGetAllocationPropertiesFromHandle", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, properties != nullptr, kArguments);
  const auto it = TheWorld().handles.find(handle);
  SLUICE_FAKE_REQUIRE(call, it != TheWorld().handles.end(), kLiveHandle);
  *properties = {};
  properties->type = kAllocationPinned;
  properties->handle_types = it->second->exportable ? kHandlePosixFd : 0;
  properties->location = it->second->where;
  // NVIDIA does not document whether this is the exporter's or the importer's
  // number of the GPU, which differ with CUDA_VISIBLE_DEVICES. The fake returns
  // neither, so that no program relies on either.
  if (it->second->imported && IsOnDevice(properties->location)) {
    properties->location.id = kNobodysCount;
  }
  return kSuccess;
}
