#include "tests/fake_cuda/cudart/kept.h"

#include <map>

#include "proto/base/mutex.h"

namespace sluice::fake_cuda {
namespace {

// The kept objects, each with the context in which it was made.
struct Kept {
  Mutex mutex;
  bool destroyed_at_end ABSL_GUARDED_BY(mutex) = false;
  std::map<StreamPointer, Context> streams ABSL_GUARDED_BY(mutex);
  std::map<EventPointer, Context> events ABSL_GUARDED_BY(mutex);
};

Kept& TheKept() {
  static Kept* const kept = new Kept;
  return *kept;
}

Context Current() {
  Context context = nullptr;
  cuCtxGetCurrent(&context);
  return context;
}

template <typename Pointer>
void DestroyAll(const std::map<Pointer, Context>& made,
                Result (*destroy)(Pointer)) {
  for (const auto& [pointer, context] : made) {
    cuCtxSetCurrent(context);
    destroy(pointer);
  }
  cuCtxSetCurrent(nullptr);
}

}  // namespace

void NoteKept(StreamPointer stream) {
  const MutexLock lock(TheKept().mutex);
  TheKept().streams[stream] = Current();
}

void NoteKept(EventPointer event) {
  const MutexLock lock(TheKept().mutex);
  TheKept().events[event] = Current();
}

void ForgetKept(StreamPointer stream) {
  const MutexLock lock(TheKept().mutex);
  TheKept().streams.erase(stream);
}

void ForgetKept(EventPointer event) {
  const MutexLock lock(TheKept().mutex);
  TheKept().events.erase(event);
}

void DestroyKept() {
  const MutexLock lock(TheKept().mutex);
  if (!TheKept().destroyed_at_end) return;
  for (const auto& [stream, context] : TheKept().streams) {
    cuCtxSetCurrent(context);
    cuStreamSynchronize(stream);
  }
  DestroyAll(TheKept().streams, &cuStreamDestroy_v2);
  DestroyAll(TheKept().events, &cuEventDestroy_v2);
  FreeKeptMemory();
}

}  // namespace sluice::fake_cuda

void fake_cudart_torch_keeps() {
  auto& kept = sluice::fake_cuda::TheKept();
  const sluice::MutexLock lock(kept.mutex);
  kept.destroyed_at_end = true;
}
