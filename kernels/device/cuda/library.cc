#include "kernels/device/cuda/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace sluice::device::cuda {

absl::StatusOr<std::unique_ptr<LoadedLibrary>> LoadedLibrary::Load(
    const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::UnavailableError(fmt::format(
        "no {} ({}): install the NVIDIA driver, or use the simulated node",
        path, dlerror()));
  }
  auto library = std::make_unique<LoadedLibrary>();
  Functions& f = library->functions_;
#define SLUICE_CUDA_RESOLVE(name, ...)                                   \
  f.name = reinterpret_cast<decltype(f.name)>(dlsym(handle, #name));     \
  if (f.name == nullptr) {                                               \
    return absl::UnavailableError(fmt::format(                           \
        "{} has no {}: the NVIDIA driver is too old, {}.{} or newer is " \
        "needed",                                                        \
        path, #name, kOldestDriver / 1000, kOldestDriver % 1000 / 10));  \
  }
  SLUICE_CUDA_FUNCTIONS(SLUICE_CUDA_RESOLVE)
#undef SLUICE_CUDA_RESOLVE
  return library;
}

absl::StatusCode CodeOf(Result result) {
  switch (result) {
    case kSuccess:
      return absl::StatusCode::kOk;
    case 1:    // INVALID_VALUE
    case 101:  // INVALID_DEVICE
    case 201:  // INVALID_CONTEXT
    case 208:  // ALREADY_MAPPED
    case 211:  // NOT_MAPPED
    case 400:  // INVALID_HANDLE
    case 500:  // NOT_FOUND
    case 712:  // HOST_MEMORY_ALREADY_REGISTERED
    case 713:  // HOST_MEMORY_NOT_REGISTERED
      return absl::StatusCode::kInvalidArgument;
    case kOutOfMemory:
    case 701:  // LAUNCH_OUT_OF_RESOURCES
      return absl::StatusCode::kResourceExhausted;
    case 36:   // CALL_REQUIRES_NEWER_DRIVER
    case 200:  // INVALID_IMAGE
    case 209:  // NO_BINARY_FOR_GPU
    case 218:  // INVALID_PTX
    case 222:  // UNSUPPORTED_PTX_VERSION
    case 801:  // NOT_SUPPORTED
      return absl::StatusCode::kUnimplemented;
    case 800:  // NOT_PERMITTED
      return absl::StatusCode::kPermissionDenied;
    // There is no GPU, or the context or the GPU is unusable.
    case 3:    // NOT_INITIALIZED
    case 46:   // DEVICE_UNAVAILABLE
    case 100:  // NO_DEVICE
    case 214:  // ECC_UNCORRECTABLE
    case 219:  // INVALID_GRAPHICS_CONTEXT
    case 220:  // NVLINK_UNCORRECTABLE
    case 226:  // CONTAINED
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 802:  // SYSTEM_NOT_READY
    case 803:  // SYSTEM_DRIVER_MISMATCH
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

namespace {

// Returns advice if a CUDA error means that the code is newer than the driver.
const char* Remedy(Result result) {
  return result == 200 || result == 218 || result == 222
             ? "; kernels that nvcc 13 compiled need the NVIDIA driver 580 or "
               "newer"
             : "";
}

}  // namespace

absl::Status LoadedLibrary::ToStatus(Result result, const std::string& call,
                                     Shortage memory) const {
  if (result == kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.cuGetErrorName(result, &name);
  functions_.cuGetErrorString(result, &text);
  return Mark(
      absl::Status(
          CodeOf(result),
          // `call` ends with SLUICE_CUDA's remark, which may be empty.
          fmt::format("{}: {} ({}){}",
                      call.substr(0, call.find_last_not_of(' ') + 1),
                      name != nullptr ? name : fmt::format("error {}", result),
                      text != nullptr ? text : "unknown to this driver",
                      Remedy(result))),
      result == kOutOfMemory ? memory : Shortage::kNone);
}

}  // namespace sluice::device::cuda
