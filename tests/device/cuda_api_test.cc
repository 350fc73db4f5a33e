// Compares our declarations of the CUDA driver API with NVIDIA's cuda.h, if a
// toolkit (or PyPI's wheel) is installed. Most checks happen at compile time.
#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/api.h"

namespace sluice::device::cuda {
namespace {

// True if parameter types A and B have the same size, and both or neither are
// pointers.
template <typename A, typename B>
constexpr bool kSameParameter =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename F, typename G>
struct SameCall : std::false_type {};
template <typename R, typename... A, typename... B>
struct SameCall<R (*)(A...), Result (*)(B...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return sizeof(R) == sizeof(Result) && (kSameParameter<A, B> && ...);
    }
    return false;
  }
  static constexpr bool value = Compare();
};

#define SLUICE_CUDA_COMPARE(name, ...)                                       \
  static_assert(SameCall<decltype(&::name), Result (*)(__VA_ARGS__)>::value, \
                #name);
SLUICE_CUDA_FUNCTIONS(SLUICE_CUDA_COMPARE)
#undef SLUICE_CUDA_COMPARE

static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) ==
              offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProperties, flags) ==
              offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDescription, flags) ==
              offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(Uuid) == sizeof(CUuuid));

static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kHandlePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kLocationHostNuma == CU_MEM_LOCATION_TYPE_HOST_NUMA);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventDefault == CU_EVENT_DEFAULT);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kAttributeVirtualMemory ==
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kAttributePosixFd ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(kAttributeHostNumaId == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
static_assert(
    kAttributeHostNumaVirtualMemory ==
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);

// The toolkit's stub library exports the same functions as a driver of its
// version.
TEST(CudaApi, EveryFunctionIsExportedUnderItsName) {
  void* const stub = dlopen(SLUICE_CUDA_STUB, RTLD_NOW | RTLD_LOCAL);
  if (stub == nullptr) GTEST_SKIP() << "no stub library: " << dlerror();
#define SLUICE_CUDA_LOOK(name, ...) \
  EXPECT_NE(dlsym(stub, #name), nullptr) << #name;
  SLUICE_CUDA_FUNCTIONS(SLUICE_CUDA_LOOK)
#undef SLUICE_CUDA_LOOK
  dlclose(stub);
}

}  // namespace
}  // namespace sluice::device::cuda
