#include "tests/fake_cuda/runtime_calls.h"

#include <chrono>

#include "tests/fake_cuda/call.h"

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuCtxSetCurrent(Context context) {
  Call call("cuCtxSetCurrent", Needs::kInitialised);
  if (call.failed()) return call.result();
  ContextState* const state = TheWorld().LiveContext(context);
  SLUICE_FAKE_REQUIRE(call, context == nullptr || state != nullptr,
                      kKnownContext);
  ContextState*& current =
      ContextStack().empty() ? BaseContext() : ContextStack().back();
  current = state;
  return kSuccess;
}

Result cuStreamQuery(StreamPointer stream) {
  Call call("cuStreamQuery", Needs::kContext);
  if (call.failed()) return call.result();
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  if (!state->queue->idle()) return kNotReady;
  HostClock().Join(state->timeline.clock);
  return kSuccess;
}

namespace {

Result Elapsed(const char* function, float* milliseconds, EventPointer from,
               EventPointer to) {
  Call call(function, Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, milliseconds != nullptr, kArguments);
  const EventState* const first = call.Event(from);
  const EventState* const last = first == nullptr ? nullptr : call.Event(to);
  if (last == nullptr) return call.result();
  for (const EventState* event : {first, last}) {
    SLUICE_FAKE_REQUIRE(call, event->timed && event->last != nullptr,
                        kTimedEvent);
  }
  SLUICE_FAKE_REQUIRE(call, first->context == last->context, kTimesOfOneGpu);
  if (!first->last->complete() || !last->last->complete()) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->last->time() -
                                                           first->last->time())
                      .count();
  return kSuccess;
}

}  // namespace

// The product's table has the older name, which every driver exports; the name
// _v2 exists since CUDA 12.8. cuda.h describes both in the same words.
Result cuEventElapsedTime(float* milliseconds, EventPointer from,
                          EventPointer to) {
  return Elapsed("cuEventElapsedTime", milliseconds, from, to);
}

Result cuEventElapsedTime_v2(float* milliseconds, EventPointer from,
                             EventPointer to) {
  return Elapsed("cuEventElapsedTime_v2", milliseconds, from, to);
}
