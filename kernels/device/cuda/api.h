// The part of the CUDA driver API that Sluice uses. These are our declarations,
// because a build needs no CUDA, and because macros of cuda.h hide the versions
// in names (cuMemGetInfo_v2). Where cuda.h is installed,
// tests/device/cuda_api_test.cc compares the header's declarations with ours.
#pragma once

#include <cstddef>

namespace sluice::device::cuda {

using Result = int;
using Device = int;
using DevicePointer = unsigned long long;
using MemoryHandle = unsigned long long;
using Context = struct CudaContext*;
using StreamPointer = struct CudaStream*;
using EventPointer = struct CudaEvent*;
using Library = struct CudaLibrary*;
using Kernel = struct CudaKernel*;

struct Uuid {
  char bytes[16];
};

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* win32;
  struct {
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDescription {
  Location location;
  int flags;
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotReady = 600;

inline constexpr int kAllocationPinned = 1;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kLocationHostNuma = 3;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;  // the event records its time
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr int kAttributeComputeMode = 20;
inline constexpr int kComputeModeDefault = 0;
inline constexpr int kAttributeCapabilityMajor = 75;
inline constexpr int kAttributeCapabilityMinor = 76;
inline constexpr int kAttributeVirtualMemory = 102;
inline constexpr int kAttributePosixFd = 103;
inline constexpr int kAttributeRdmaOfVirtualMemory = 110;
inline constexpr int kAttributeHostNumaId = 134;
inline constexpr int kAttributeHostNumaVirtualMemory = 141;

// Lists X(exported name, parameter types…). Each function returns Result.
#define SLUICE_CUDA_FUNCTIONS(X)                                               \
  X(cuInit, unsigned)                                                          \
  X(cuDriverGetVersion, int*)                                                  \
  X(cuGetErrorName, Result, const char**)                                      \
  X(cuGetErrorString, Result, const char**)                                    \
  X(cuDeviceGetCount, int*)                                                    \
  X(cuDeviceGet, Device*, int)                                                 \
  X(cuDeviceGetName, char*, int, Device)                                       \
  X(cuDeviceGetUuid_v2, Uuid*, Device)                                         \
  X(cuDeviceGetAttribute, int*, int, Device)                                   \
  X(cuDeviceGetPCIBusId, char*, int, Device)                                   \
  X(cuDeviceTotalMem_v2, size_t*, Device)                                      \
  X(cuDevicePrimaryCtxRetain, Context*, Device)                                \
  X(cuDevicePrimaryCtxRelease_v2, Device)                                      \
  X(cuCtxGetCurrent, Context*)                                                 \
  X(cuCtxPushCurrent_v2, Context)                                              \
  X(cuCtxPopCurrent_v2, Context*)                                              \
  X(cuMemGetInfo_v2, size_t*, size_t*)                                         \
  X(cuMemGetAllocationGranularity, size_t*, const AllocationProperties*, int)  \
  X(cuMemCreate, MemoryHandle*, size_t, const AllocationProperties*,           \
    unsigned long long)                                                        \
  X(cuMemRelease, MemoryHandle)                                                \
  X(cuMemExportToShareableHandle, void*, MemoryHandle, int,                    \
    unsigned long long)                                                        \
  X(cuMemImportFromShareableHandle, MemoryHandle*, void*, int)                 \
  X(cuMemGetAllocationPropertiesFromHandle, AllocationProperties*,             \
    MemoryHandle)                                                              \
  X(cuMemAddressReserve, DevicePointer*, size_t, size_t, DevicePointer,        \
    unsigned long long)                                                        \
  X(cuMemAddressFree, DevicePointer, size_t)                                   \
  X(cuMemMap, DevicePointer, size_t, size_t, MemoryHandle, unsigned long long) \
  X(cuMemUnmap, DevicePointer, size_t)                                         \
  X(cuMemSetAccess, DevicePointer, size_t, const AccessDescription*, size_t)   \
  X(cuMemHostRegister_v2, void*, size_t, unsigned)                             \
  X(cuMemHostUnregister, void*)                                                \
  X(cuStreamCreate, StreamPointer*, unsigned)                                  \
  X(cuStreamDestroy_v2, StreamPointer)                                         \
  X(cuStreamSynchronize, StreamPointer)                                        \
  X(cuStreamWaitEvent, StreamPointer, EventPointer, unsigned)                  \
  X(cuEventCreate, EventPointer*, unsigned)                                    \
  X(cuEventDestroy_v2, EventPointer)                                           \
  X(cuEventRecord, EventPointer, StreamPointer)                                \
  X(cuEventQuery, EventPointer)                                                \
  X(cuEventElapsedTime, float*, EventPointer, EventPointer)                    \
  X(cuEventSynchronize, EventPointer)                                          \
  X(cuMemcpyAsync, DevicePointer, DevicePointer, size_t, StreamPointer)        \
  X(cuMemsetD8Async, DevicePointer, unsigned char, size_t, StreamPointer)      \
  X(cuLibraryLoadData, Library*, const void*, int*, void**, unsigned, int*,    \
    void**, unsigned)                                                          \
  X(cuLibraryUnload, Library)                                                  \
  X(cuLibraryGetKernel, Kernel*, Library, const char*)                         \
  X(cuLaunchKernel, Kernel, unsigned, unsigned, unsigned, unsigned, unsigned,  \
    unsigned, unsigned, StreamPointer, void**, void**)

struct Functions {
#define SLUICE_CUDA_MEMBER(name, ...) Result (*name)(__VA_ARGS__) = nullptr;
  SLUICE_CUDA_FUNCTIONS(SLUICE_CUDA_MEMBER)
#undef SLUICE_CUDA_MEMBER
};

}  // namespace sluice::device::cuda
