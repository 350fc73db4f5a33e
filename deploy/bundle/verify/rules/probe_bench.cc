#include "deploy/bundle/verify/rules/probe_bench.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "kernels/ops/gpu_kernels.h"

namespace sluice::verify {

using namespace device::cuda;  // NOLINT: the driver's own names

namespace {

constexpr int kNotAsked = 3;

AllocationProperties OnDevice(Device device) {
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location = {kLocationDevice, device};
  return properties;
}

}  // namespace

ProbeBench::ProbeBench() {
  auto loaded = LoadedLibrary::Load("libcuda.so.1");
  if (!loaded.ok()) GiveUp(std::string(loaded.status().message()).c_str());
  library_ = *std::move(loaded);
  Must(f().cuInit(0), "cuInit");
  Must(f().cuDeviceGet(&device_, 0), "cuDeviceGet");
  Must(f().cuDevicePrimaryCtxRetain(&context_, device_), "retain");
  Must(f().cuCtxPushCurrent_v2(context_), "push");
  Must(f().cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate");
  const AllocationProperties properties = OnDevice(device_);
  Must(f().cuMemGetAllocationGranularity(&granularity_, &properties,
                                         kGranularityMinimum),
       "granularity");
}

MemoryHandle ProbeBench::Create(size_t units) {
  MemoryHandle handle = 0;
  const AllocationProperties properties = OnDevice(device_);
  Must(f().cuMemCreate(&handle, units * granularity_, &properties, 0),
       "cuMemCreate");
  return handle;
}

DevicePointer ProbeBench::Reserve(size_t units) {
  DevicePointer range = 0;
  Must(f().cuMemAddressReserve(&range, units * granularity_, 0, 0, 0),
       "cuMemAddressReserve");
  return range;
}

ProbeBench::Piece ProbeBench::Mapped(size_t bytes) {
  const size_t units = (bytes + granularity_ - 1) / granularity_;
  const Piece piece = {Reserve(units), units * granularity_};
  Must(f().cuMemMap(piece.address, piece.size, 0, Create(units), 0),
       "cuMemMap");
  return piece;
}

ProbeBench::Piece ProbeBench::OnGpu(size_t bytes) {
  const Piece piece = Mapped(bytes);
  const AccessDescription access = {{kLocationDevice, device_},
                                    kAccessReadWrite};
  Must(f().cuMemSetAccess(piece.address, piece.size, &access, 1),
       "cuMemSetAccess");
  return piece;
}

std::byte* ProbeBench::Pages(size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) GiveUp("mmap");
  std::memset(pages, 1, bytes);
  return static_cast<std::byte*>(pages);
}

std::byte* ProbeBench::Pinned(size_t bytes) {
  std::byte* const pages = Pages(bytes);
  Must(f().cuMemHostRegister_v2(pages, bytes, 0), "cuMemHostRegister");
  return pages;
}

EventPointer ProbeBench::NewEvent() {
  EventPointer event = nullptr;
  Must(f().cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
  return event;
}

Kernel ProbeBench::MergeKernel() {
  if (ops::MergeFatbin().empty()) GiveUp("this build has no device code");
  Library library = nullptr;
  Kernel kernel = nullptr;
  Must(f().cuLibraryLoadData(&library, ops::MergeFatbin().data(), nullptr,
                             nullptr, 0, nullptr, nullptr, 0),
       "cuLibraryLoadData");
  Must(f().cuLibraryGetKernel(&kernel, library, "sluice_merge_fp32"),
       "cuLibraryGetKernel");
  return kernel;
}

StreamPointer ProbeBench::StreamOfSecondGpu() {
  Device second = 0;
  Context context = nullptr;
  StreamPointer stream = nullptr;
  Must(f().cuDeviceGet(&second, 1), "cuDeviceGet 1");
  Must(f().cuDevicePrimaryCtxRetain(&context, second), "retain 1");
  Must(f().cuCtxPushCurrent_v2(context), "push 1");
  Must(f().cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate 1");
  Must(f().cuCtxPopCurrent_v2(nullptr), "pop 1");
  return stream;
}

Result ProbeBench::CopyToGpu(DevicePointer to, std::byte* from, size_t size) {
  return f().cuMemcpyAsync(to, reinterpret_cast<DevicePointer>(from), size,
                           stream_);
}

void ProbeBench::Must(Result result, const char* what) const {
  if (result == kSuccess) return;
  GiveUp(
      (std::string(what) + " failed with " + std::to_string(result)).c_str());
}

void ProbeBench::GiveUp(const char* why) const {
  std::fprintf(stderr, "%s\n", why);
  std::fflush(nullptr);
  _exit(kNotAsked);
}

}  // namespace sluice::verify
