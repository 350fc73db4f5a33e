#include "client/torch/memory/torch_cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constinit Mutex load_mutex;
TorchCuda* loaded ABSL_GUARDED_BY(load_mutex) = nullptr;

// Opens `library` globally, as `import torch` does, so that libraries that are
// opened later find its symbols.
absl::Status OpenTorch(const std::string& library) {
  if (dlopen(library.c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(fmt::format(
      "torch's CUDA library cannot be loaded, so there are no tensors on a "
      "GPU: {}; install torch 2.11 with all of NVIDIA's libraries "
      "(pip install torch==2.11.0)",
      dlerror()));
}

absl::StatusOr<TorchCuda*> OpenModule(const std::string& library) {
  void* const module = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const entry =
      module != nullptr ? dlsym(module, "sluice_torch_cuda") : nullptr;
  if (entry != nullptr) return reinterpret_cast<TorchCuda* (*)()>(entry)();
  return absl::UnavailableError(fmt::format(
      "Sluice's module for torch's CUDA tensors cannot be loaded: {}; a build "
      "has it beside the program, in ../lib, and no package has it yet",
      dlerror()));
}

}  // namespace

absl::StatusOr<TorchCuda*> LoadTorchCuda(const TorchCudaLibraries& libraries) {
  const MutexLock lock(load_mutex);
  if (loaded != nullptr) return loaded;
  SLUICE_RETURN_IF_ERROR(OpenTorch(libraries.torch));
  SLUICE_ASSIGN_OR_RETURN(loaded, OpenModule(libraries.module));
  return loaded;
}

TorchCuda* LoadedTorchCuda() {
  const MutexLock lock(load_mutex);
  return loaded;
}

}  // namespace sluice::runtime
