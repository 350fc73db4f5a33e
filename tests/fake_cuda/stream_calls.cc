// Calls for streams and events.
#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/exports.h"

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuStreamCreate(StreamPointer* stream, unsigned flags) {
  Call call("cuStreamCreate", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, stream != nullptr, kArguments);
  SLUICE_FAKE_REQUIRE(call, flags == kStreamNonBlocking, kNonBlocking);
  World& world = TheWorld();
  *stream = world.NewHandle<StreamPointer>();
  world.streams[*stream] = world.NewStream(call.context());
  return kSuccess;
}

Result cuStreamDestroy_v2(StreamPointer stream) {
  Call call("cuStreamDestroy_v2", Needs::kContext, Call::kReleases);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it = world.streams.find(stream);
  SLUICE_FAKE_REQUIRE(call, it != world.streams.end(), kLiveStream);
  world.Close(*it->second);
  world.streams.erase(it);
  return call.Done();
}

Result cuStreamSynchronize(StreamPointer stream) {
  Call call("cuStreamSynchronize", Needs::kContext);
  if (call.failed()) return call.result();
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  const Clock seen = state->timeline.clock;
  TheWorld().NoteWait();
  call.Unlock();
  state->queue->Wait();
  HostClock().Join(seen);
  const sluice::MutexLock lock(TheWorld().mutex);
  return state->context->lost;
}

Result cuStreamWaitEvent(StreamPointer stream, EventPointer event,
                         unsigned flags) {
  Call call("cuStreamWaitEvent", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, flags == 0, kArguments);
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  EventState* const waited = call.Event(event);
  if (waited == nullptr) return call.result();
  state->timeline.Enqueue(HostClock());
  state->timeline.clock.Join(waited->seen);
  if (TheWorld().settings.Get("forget_waits") != 0) {
    // The stream runs ahead of the event that it should wait for, undelayed.
    state->queue->Hurry();
    return kSuccess;
  }
  if (auto last = waited->last) state->queue->Push([last] { last->Wait(); });
  return kSuccess;
}

Result cuEventCreate(EventPointer* event, unsigned flags) {
  Call call("cuEventCreate", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, event != nullptr && flags < 4, kArguments);
  World& world = TheWorld();
  *event = world.NewHandle<EventPointer>();
  world.events[*event].context = call.context();
  world.events[*event].timed = (flags & kEventDisableTiming) == 0;
  return kSuccess;
}

Result cuEventDestroy_v2(EventPointer event) {
  Call call("cuEventDestroy_v2", Needs::kContext, Call::kReleases);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, TheWorld().events.erase(event) == 1, kLiveEvent);
  return call.Done();
}

Result cuEventRecord(EventPointer event, StreamPointer stream) {
  Call call("cuEventRecord", Needs::kContext);
  if (call.failed()) return call.result();
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  EventState* const recorded = call.Event(event);
  if (recorded == nullptr) return call.result();
  SLUICE_FAKE_REQUIRE(call, recorded->context == state->context,
                      kEventOfContext);
  state->timeline.Enqueue(HostClock());
  recorded->seen = state->timeline.clock;
  recorded->last = std::make_shared<Recording>();
  state->queue->Push([last = recorded->last] { last->Complete(); });
  return kSuccess;
}

Result cuEventQuery(EventPointer event) {
  Call call("cuEventQuery", Needs::kContext);
  if (call.failed()) return call.result();
  EventState* const state = call.Event(event);
  if (state == nullptr) return call.result();
  const bool unready = TheWorld().settings.Get("unready") != 0;
  if (state->last != nullptr && (unready || !state->last->complete())) {
    return kNotReady;
  }
  HostClock().Join(state->seen);
  return kSuccess;
}

Result cuEventSynchronize(EventPointer event) {
  Call call("cuEventSynchronize", Needs::kContext);
  if (call.failed()) return call.result();
  EventState* const state = call.Event(event);
  if (state == nullptr) return call.result();
  const auto last = state->last;
  const Clock seen = state->seen;
  ContextState* const context = state->context;
  TheWorld().NoteWait();
  call.Unlock();
  if (last != nullptr) last->Wait();
  HostClock().Join(seen);
  const sluice::MutexLock lock(TheWorld().mutex);
  return context->lost;
}
