// Runtime calls for streams, events, copies and fills. All but those about
// capturing make the driver's call in the thread's context.
#include "tests/fake_cuda/cudart/kept.h"
#include "tests/fake_cuda/cudart/runtime.h"

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return InContext(cuStreamCreate, reinterpret_cast<StreamPointer*>(stream),
                   flags);
}

// All priorities are equal here.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                         int) {
  const cudaError_t error = cudaStreamCreateWithFlags(stream, flags);
  if (error == cudaSuccess) NoteKept(Driver(*stream));
  return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ForgetKept(Driver(stream));
  return InContext(cuStreamDestroy_v2, Driver(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return InContext(cuStreamSynchronize, Driver(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return InContext(cuStreamQuery, Driver(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags) {
  return InContext(cuStreamWaitEvent, Driver(stream), Driver(event), flags);
}

// No stream is ever captured: graphs are refused.
cudaError_t cudaStreamIsCapturing(cudaStream_t,
                                  cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const cudaError_t error =
      InContext(cuEventCreate, reinterpret_cast<EventPointer*>(event), flags);
  if (error == cudaSuccess) NoteKept(Driver(*event));
  return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ForgetKept(Driver(event));
  return InContext(cuEventDestroy_v2, Driver(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return InContext(cuEventRecord, Driver(event), Driver(stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return InContext(cuEventQuery, Driver(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return InContext(cuEventSynchronize, Driver(event));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from,
                                 cudaEvent_t to) {
  return InContext(cuEventElapsedTime_v2, milliseconds, Driver(from),
                   Driver(to));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size,
                            cudaMemcpyKind, cudaStream_t stream) {
  return size == 0 ? cudaSuccess
                   : InContext(cuMemcpyAsync, Driver(to), Driver(from), size,
                               Driver(stream));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size,
                            cudaStream_t stream) {
  return size == 0 ? cudaSuccess
                   : InContext(cuMemsetD8Async, Driver(to),
                               static_cast<unsigned char>(value), size,
                               Driver(stream));
}

}  // extern "C"
