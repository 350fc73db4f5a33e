// A table of all rules that the fake driver demands of its callers.
//
// A call that breaks a rule is refused with the code of the rule's row, and the
// process exits with an error (world.h), even if a real driver accepts the
// call. The setting `rules` plays a real driver's code instead.
//
//   documented  NVIDIA's text forbids it; the source is the function, or type,
//               with the comment in CUDA 13.0's cuda.h that says so
//   assumed     our reading of the text, or stricter than the text; the source
//               says why. If an H100 was asked, the source ends with "H100:"
//               and its answer (measured/nvidia-h100-580.159.04.diff); "so"
//               means as assumed
//   measured    no text says so, but a tested driver behaves so; the source
//               names the GPU and the driver
//   unmodelled  CUDA allows it, but the fake refuses it, so that no program
//               depends on it unnoticed
#pragma once

#include <string_view>

namespace sluice::fake_cuda {

// X(name, code, certainty, what the caller must do, source)
// clang-format off
#define SLUICE_FAKE_CUDA_RULES(X) \
  X(Initialised, 3, documented, "cuInit comes first", "CUDA_ERROR_NOT_INITIALIZED") \
  X(NotForked, 3, assumed, "a forked child does not use its parent's driver", "the programming guide says so of fork, cuda.h says nothing; H100: so") \
  X(CurrentContext, 201, documented, "the thread has a current context", "CUDA_ERROR_INVALID_CONTEXT") \
  X(ReleaseNeedsContext, 201, assumed, "streams and events are destroyed with a context current", "cuEventDestroy lists INVALID_CONTEXT and says no more; H100: passes") \
  X(LiveContext, 709, documented, "the context still lives", "CUDA_ERROR_CONTEXT_IS_DESTROYED") \
  X(KnownContext, 201, documented, "only a context is pushed", "cuCtxPushCurrent") \
  X(PopPushed, 201, documented, "no more contexts are popped than were pushed", "cuCtxPopCurrent") \
  X(ReleaseRetained, 201, documented, "a primary context is released as often as retained", "cuDevicePrimaryCtxRelease") \
  X(EmptyContext, 0, assumed, "streams, events and registrations end before their context", "cuDevicePrimaryCtxRelease resets the context and does not say what becomes of handles") \
  X(DeviceExists, 101, documented, "the device is one of cuDeviceGetCount", "CUDA_ERROR_INVALID_DEVICE") \
  X(Arguments, 1, documented, "pointers are not null, reserved flags are zero", "each function's parameters") \
  X(Properties, 1, documented, "an allocation is pinned, on a device or a NUMA node, reserved bytes zero", "CUmemAllocationProp") \
  X(Granularity, 1, documented, "sizes and addresses are multiples of the granularity of that place", "cuMemCreate, cuMemMap") \
  X(PageMultiple, 1, documented, "a reservation is whole pages, its alignment a power of two", "cuMemAddressReserve") \
  X(LiveHandle, 1, documented, "a memory handle is live", "cuMemRelease: undefined otherwise") \
  X(MadeForExport, 1, documented, "exported memory was made with a handle type", "CUmemAllocationProp::requestedHandleTypes") \
  X(ExportOwn, 1, measured, "exported memory was made by this process, not imported", "an H100, 580.159.04: INVALID_VALUE") \
  X(InsideReservation, 1, documented, "memory is mapped inside one reservation", "cuMemMap") \
  X(NotMapped, 1, documented, "no memory is mapped over an existing mapping", "cuMemMap") \
  X(WholeMemory, 1, assumed, "memory is mapped whole, from offset 0", "cuMemMap: offset must be zero; a smaller size is not forbidden; H100: 801") \
  X(UnmapWhole, 1, documented, "an unmapped range is exactly one that was mapped", "cuMemUnmap") \
  X(UnmapIdle, 1, assumed, "no stream may still use an unmapped range", "cuMemUnmap may synchronise and does not say that it does; H100: passes, and the context is lost with 719") \
  X(FreeWhole, 1, documented, "a reservation is freed whole", "cuMemAddressFree") \
  X(FreeUnmapped, 1, assumed, "a reservation has no mappings when freed", "cuMemAddressFree says nothing; H100: so") \
  X(AccessMapped, 1, documented, "access is set for whole mappings", "cuMemSetAccess") \
  X(AccessPlace, 1, documented, "the host has access only to memory of NUMA nodes", "cuMemSetAccess") \
  X(AccessOwnGpu, 1, unmodelled, "a GPU has access to its own and the host's memory", "peers") \
  X(RegisterWritable, 1, assumed, "registered pages are mapped and can be written", "cuMemHostRegister: READ_ONLY is required for others; H100: so") \
  X(RegisterOnce, 712, documented, "no page is registered twice", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED") \
  X(Registered, 713, documented, "an unregistered address is the start of a registration", "cuMemHostUnregister") \
  X(UnregisterIdle, 1, assumed, "no stream may still use unregistered memory", "cuMemHostUnregister says nothing; H100: passes") \
  X(LiveStream, 400, documented, "a stream is live, not null where it is destroyed", "CUDA_ERROR_INVALID_HANDLE") \
  X(StreamOfContext, 400, assumed, "work goes to a stream of the current context", "programming guide: a launch fails on another device's stream; copies pass there") \
  X(NonBlocking, 801, unmodelled, "streams do not wait for the default stream", "cuStreamCreate") \
  X(LiveEvent, 400, documented, "an event is live", "CUDA_ERROR_INVALID_HANDLE") \
  X(EventOfContext, 400, documented, "an event is recorded on a stream of its context", "cuEventRecord") \
  X(TimedEvent, 400, documented, "elapsed time is between two recorded events that were made with timing", "cuEventElapsedTime") \
  X(TimesOfOneGpu, 400, documented, "elapsed time is between two events of one GPU", "programming guide, multi-device: cudaEventElapsedTime fails if they are associated to different devices; the code is assumed") \
  X(CopyAccess, 1, assumed, "all of a copied or filled range is mapped, with access from that GPU", "a real driver may find out late, as a lost context; H100: so") \
  X(CopyOneRegistration, 1, assumed, "a copy lies in one registration, or in none", "programming guide: ranges entirely registered; H100: so") \
  X(OperationPinned, 700, assumed, "a kernel uses only a GPU's memory or pinned memory", "GPUs read pageable memory on some platforms only (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)") \
  X(FillPinned, 1, assumed, "a filled range is a GPU's memory, or pinned", "cuMemsetD8Async takes a CUdeviceptr, and says nothing of pageable memory; H100: so") \
  X(LiveLibrary, 400, documented, "a library is live", "CUDA_ERROR_INVALID_HANDLE") \
  X(LiveKernel, 400, documented, "a kernel is one of a live library", "CUDA_ERROR_INVALID_HANDLE") \
  X(LaunchShape, 1, documented, "a launch is within a GPU's limits and not empty", "CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X and the like")
// clang-format on

enum class Rule {
#define SLUICE_FAKE_CUDA_RULE(name, ...) k##name,
  SLUICE_FAKE_CUDA_RULES(SLUICE_FAKE_CUDA_RULE)
#undef SLUICE_FAKE_CUDA_RULE
      kCount
};

struct RuleText {
  std::string_view name;
  int code;
  std::string_view known;
  std::string_view text;
  std::string_view source;
};

inline constexpr RuleText kRules[] = {
#define SLUICE_FAKE_CUDA_RULE(name, code, known, text, source) \
  {#name, code, #known, text, source},
    SLUICE_FAKE_CUDA_RULES(SLUICE_FAKE_CUDA_RULE)
#undef SLUICE_FAKE_CUDA_RULE
};

constexpr const RuleText& TextOf(Rule rule) {
  return kRules[static_cast<int>(rule)];
}

}  // namespace sluice::fake_cuda
