// The state of the CUDA runtime between driver and caller: the GPU of each
// thread, its last error, and the primary contexts that the runtime holds.
#pragma once

#include <cuda_runtime_api.h>

#include "tests/fake_cuda/runtime_calls.h"

namespace sluice::fake_cuda {

// This thread's device, as set by cudaSetDevice: an ordinal among the GPUs that
// CUDA_VISIBLE_DEVICES lists.
int& ThreadDevice();
// Keeps the thread's current context if there is one, as in the programming
// guide ("interoperability between runtime and driver"). Otherwise makes the
// primary context of the thread's device current, and holds it until exit.
Result Enter();
// Returns the runtime's code for a driver's code, and remembers an error for
// cudaGetLastError. The two codes are equal since CUDA 10.1.
cudaError_t Told(Result result);
cudaError_t& LastError();

inline StreamPointer Driver(cudaStream_t stream) {
  return reinterpret_cast<StreamPointer>(stream);
}
inline EventPointer Driver(cudaEvent_t event) {
  return reinterpret_cast<EventPointer>(event);
}
inline DevicePointer Driver(const void* pointer) {
  return reinterpret_cast<DevicePointer>(pointer);
}

// Makes a driver's call in the thread's context.
template <typename... Parameters, typename... Arguments>
cudaError_t InContext(Result (*call)(Parameters...), Arguments... arguments) {
  const Result entered = Enter();
  return Told(entered != kSuccess ? entered : call(arguments...));
}

}  // namespace sluice::fake_cuda
