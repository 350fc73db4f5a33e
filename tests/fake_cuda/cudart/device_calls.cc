// Runtime calls for devices, free memory, versions and errors.
#include <cstdio>
#include <cstring>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/cudart/runtime.h"

// cuda_runtime_api.h may define this as a macro for a versioned name.
#undef cudaGetDeviceProperties

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

namespace {

constexpr int kVersion = 13000;

cudaError_t CheckDevice(int device) {
  int count = 0;
  if (const auto error = cudaGetDeviceCount(&count)) return error;
  return device >= 0 && device < count ? cudaSuccess
                                       : LastError() = cudaErrorInvalidDevice;
}

}  // namespace

extern "C" {

// This call makes no context: torch calls it before a process forks.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  const Result initialised = cuInit(0);
  return Told(initialised != kSuccess ? initialised : cuDeviceGetCount(count));
}

cudaError_t cudaGetDevice(int* device) {
  const int current = fake_cuda_current_device();
  *device = ThreadDevice();
  for (int i = 0; current >= 0 && fake_cuda_device_of(i) >= 0; ++i) {
    if (fake_cuda_device_of(i) == current) *device = i;
  }
  return cudaSuccess;
}

// Initialises the device, as CUDA does since version 12 ("cudaSetDevice" of the
// runtime's documentation).
cudaError_t cudaSetDevice(int device) {
  if (const auto error = CheckDevice(device)) return error;
  int now = 0;
  cudaGetDevice(&now);
  ThreadDevice() = device;
  if (now != device) {
    if (const Result result = cuCtxSetCurrent(nullptr)) return Told(result);
  }
  return Told(Enter());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (const auto error = CheckDevice(ordinal)) return error;
  *properties = {};
  const Device device = fake_cuda_device_of(ordinal);
  Uuid uuid;
  if (const Result result = cuDeviceGetUuid_v2(&uuid, device)) {
    return Told(result);
  }
  std::memcpy(properties->uuid.bytes, uuid.bytes, sizeof(uuid.bytes));
  // The attributes that torch reads before it chooses kernels.
  for (const auto& [attribute, value] :
       {std::pair(kAttributeCapabilityMajor, &properties->major),
        std::pair(kAttributeCapabilityMinor, &properties->minor)}) {
    if (const Result result = cuDeviceGetAttribute(value, attribute, device)) {
      return Told(result);
    }
  }
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  if (const Result result =
          cuDeviceGetName(properties->name, sizeof(properties->name), device)) {
    return Told(result);
  }
  return Told(cuDeviceTotalMem_v2(&properties->totalGlobalMem, device));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return Told(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return InContext(cuMemGetInfo_v2, free, total);
}

const char* cudaGetErrorName(cudaError_t error) {
  const char* name = nullptr;
  cuGetErrorName(error, &name);
  return name != nullptr ? name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = LastError();
  LastError() = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return LastError(); }

}  // extern "C"
