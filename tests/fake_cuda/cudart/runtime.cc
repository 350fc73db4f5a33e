#include "tests/fake_cuda/cudart/runtime.h"

#include <cstdlib>
#include <map>

#include "proto/base/mutex.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/cudart/kept.h"

namespace sluice::fake_cuda {
namespace {

struct Holds {
  Mutex mutex;
  std::map<int, Context> contexts ABSL_GUARDED_BY(mutex);
};

Holds& TheHolds() {
  static Holds* const holds = new Holds;
  return *holds;
}

// Runs before the driver checks for leftovers, as the driver was initialised
// earlier (atexit runs in reverse order).
void ReleaseAll() {
  DestroyKept();
  cuCtxSetCurrent(nullptr);
  Holds& holds = TheHolds();
  const MutexLock lock(holds.mutex);
  for (const auto& [device, context] : holds.contexts) {
    cuDevicePrimaryCtxRelease_v2(device);
  }
  holds.contexts.clear();
}

Result Initialise() {
  const Result result = cuInit(0);
  if (result == kSuccess) std::atexit(ReleaseAll);
  return result;
}

}  // namespace

int& ThreadDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t& LastError() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t Told(Result result) {
  const auto error = static_cast<cudaError_t>(result);
  // cudaErrorNotReady is no error to remember (comment of cudaStreamQuery).
  if (error != cudaSuccess && error != cudaErrorNotReady) LastError() = error;
  return error;
}

Result Enter() {
  static const Result initialised = Initialise();
  if (initialised != kSuccess) return initialised;
  Context current = nullptr;
  if (const Result result = cuCtxGetCurrent(&current); result != kSuccess) {
    return result;
  }
  if (current != nullptr) return kSuccess;
  Holds& holds = TheHolds();
  const MutexLock lock(holds.mutex);
  const Device device = fake_cuda_device_of(ThreadDevice());
  Context& own = holds.contexts[device];
  if (own == nullptr) {
    const Result result = cuDevicePrimaryCtxRetain(&own, device);
    if (result != kSuccess) {
      holds.contexts.erase(device);
      return result;
    }
  }
  return cuCtxSetCurrent(own);
}

}  // namespace sluice::fake_cuda
