// Functions of the CUDA runtime that the real libtorch_cuda.so and
// libtorch_python.so import in addition to those that libc10_cuda.so imports.
//
// A kernel is registered when its library is loaded, which needs no GPU. A
// launch is refused, as nothing here could run it. No CUDA header is included,
// so these functions need not declare the parameters that they do not read.
#include "tests/fake_cuda/control.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 801;

}  // namespace

#define SLUICE_REGISTERS(name) \
  extern "C" int name() { return kSuccess; }
#define SLUICE_REFUSES(name)                                             \
  extern "C" int name() {                                                \
    sluice::fake_cuda::fake_cuda_find(#name " is not implemented here"); \
    return kNotSupported;                                                \
  }

extern "C" int cudaEventRecord(void* event, void* stream);
extern "C" int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cudaEventRecord(event, stream);
}
extern "C" void** __cudaRegisterFatBinary() {  // NOLINT: CUDA's name
  static void* handle = nullptr;
  return &handle;
}

// clang-format off
SLUICE_REGISTERS(__cudaRegisterFatBinaryEnd)
SLUICE_REGISTERS(__cudaRegisterFunction)
SLUICE_REGISTERS(__cudaRegisterVar)
SLUICE_REGISTERS(__cudaUnregisterFatBinary)
SLUICE_REFUSES(__cudaGetKernel)
SLUICE_REFUSES(__cudaInitModule)
SLUICE_REFUSES(__cudaLaunchKernel)
SLUICE_REFUSES(__cudaPopCallConfiguration)
SLUICE_REFUSES(__cudaPushCallConfiguration)
SLUICE_REFUSES(cudaDeviceGetAttribute)
SLUICE_REFUSES(cudaDeviceGetPCIBusId)
SLUICE_REFUSES(cudaEventCreate)
SLUICE_REFUSES(cudaFreeHost)
SLUICE_REFUSES(cudaFuncGetAttributes)
SLUICE_REFUSES(cudaFuncSetAttribute)
SLUICE_REFUSES(cudaGetSymbolAddress)
SLUICE_REFUSES(cudaGraphDebugDotPrint)
SLUICE_REFUSES(cudaGraphDestroy)
SLUICE_REFUSES(cudaGraphExecDestroy)
SLUICE_REFUSES(cudaGraphGetNodes)
SLUICE_REFUSES(cudaGraphInstantiateWithFlags)
SLUICE_REFUSES(cudaGraphLaunch)
SLUICE_REFUSES(cudaHostAlloc)
SLUICE_REFUSES(cudaHostRegister)
SLUICE_REFUSES(cudaHostUnregister)
SLUICE_REFUSES(cudaIpcGetEventHandle)
SLUICE_REFUSES(cudaIpcOpenEventHandle)
SLUICE_REFUSES(cudaLaunchCooperativeKernel)
SLUICE_REFUSES(cudaLaunchHostFunc)
SLUICE_REFUSES(cudaLaunchKernel)
SLUICE_REFUSES(cudaLaunchKernelExC)
SLUICE_REFUSES(cudaMemcpyToSymbol)
SLUICE_REFUSES(cudaMemset)
SLUICE_REFUSES(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
SLUICE_REFUSES(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
SLUICE_REFUSES(cudaPointerGetAttributes)
SLUICE_REFUSES(cudaProfilerStart)
SLUICE_REFUSES(cudaProfilerStop)
SLUICE_REFUSES(cudaStreamAddCallback)
SLUICE_REFUSES(cudaStreamBeginCapture)
SLUICE_REFUSES(cudaStreamCreate)
SLUICE_REFUSES(cudaStreamEndCapture)
SLUICE_REFUSES(cudaStreamGetPriority)
// clang-format on
