// The state of the CUDA runtime between driver and caller: which GPU a thread
// is on, its last error, and the primary contexts that the runtime holds.
#pragma once

#include <cuda_runtime_api.h>

#include "tests/fake_cuda/runtime_calls.h"

namespace sluice::fake_cuda {

// This thread's device, as cudaSetDevice left it: an ordinal, which
// CUDA_VISIBLE_DEVICES gives to other GPUs.
int& ThreadDevice();
// Makes sure that a context is current: the one that is, as the programming
// guide has it ("interoperability between runtime and driver"), else the
// primary one of the thread's device, which the runtime keeps until exit.
Result Enter();
// The runtime's code of a driver's, remembered for cudaGetLastError. They are
// the same numbers since CUDA 10.1.
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

// A call that is a driver's call in the thread's context.
template <typename... Parameters, typename... Arguments>
cudaError_t InContext(Result (*call)(Parameters...), Arguments... arguments) {
  const Result entered = Enter();
  return Told(entered != kSuccess ? entered : call(arguments...));
}

}  // namespace sluice::fake_cuda
