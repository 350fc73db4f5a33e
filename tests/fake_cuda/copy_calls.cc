// Copies.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/exports.h"
#include "tests/fake_cuda/range.h"

namespace sluice::fake_cuda {
namespace {

// What a copy reads: a range, or pageable memory's bytes as they were when the
// copy was asked for.
struct Source {
  DevicePointer address = 0;
  std::shared_ptr<std::vector<std::byte>> staged;
};

void Lose(World& world, ContextState& context, const char* why) {
  if (context.lost != kSuccess) return;
  context.lost = kIllegalAddress;
  world.Find(
      fmt::format("GPU {}: {}: the context is lost", context.device, why));
}

// On the stream's thread: memory may have gone since the call.
void CopyNow(ContextState& context, DevicePointer to, const Source& from,
             size_t size) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  if (context.lost != kSuccess) return;
  const std::byte* source = nullptr;
  if (from.staged != nullptr) {
    source = from.staged->data();
  } else {
    const Range read = Resolve(world, from.address, size, context);
    if (read.broken) return Lose(world, context, "a copy reads what is gone");
    source = read.view;
  }
  const Range written = Resolve(world, to, size, context);
  if (written.broken) {
    return Lose(world, context, "a copy writes what is gone");
  }
  std::memmove(written.view, source, size);
}

// As CopyNow.
void FillNow(ContextState& context, DevicePointer to, unsigned char value,
             size_t size) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  if (context.lost != kSuccess) return;
  const Range written = Resolve(world, to, size, context);
  if (written.broken) {
    return Lose(world, context, "a fill writes what is gone");
  }
  std::memset(written.view, value, size);
}

void NoteAccess(World& world, const Timeline& by, const Range& range,
                bool writes, const char* what = "a copy") {
  for (const Range::Part& part : range.parts) {
    if (part.uses != nullptr) (*part.uses)[by.stream] = by.now();
    const auto race = world.races.Access(by, part.extent, writes, what);
    if (race) world.Find("race: " + *race);
  }
}

bool IsPageable(const Range& range) {
  return range.kind == Range::Kind::kPageable;
}

}  // namespace
}  // namespace sluice::fake_cuda

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t size,
                     StreamPointer stream) {
  Call call("cuMemcpyAsync", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, to != 0 && from != 0 && size > 0, kArguments);
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  ContextState& context = *call.context();
  SLUICE_FAKE_REQUIRE(call, state->context == &context, kStreamOfContext);
  World& world = TheWorld();
  const Range written = Resolve(world, to, size, context);
  if (written.broken) return call.Refuse(*written.broken, "destination");
  const Range read = Resolve(world, from, size, context);
  if (read.broken) return call.Refuse(*read.broken, "source");
  state->timeline.Enqueue(HostClock());
  Source source{from, nullptr};
  if (IsPageable(read)) {
    // Staged before the call returns: cuda.h, "API synchronization behavior".
    source.staged =
        std::make_shared<std::vector<std::byte>>(read.view, read.view + size);
  } else {
    NoteAccess(world, state->timeline, read, /*writes=*/false);
  }
  if (!IsPageable(written)) {
    NoteAccess(world, state->timeline, written, /*writes=*/true);
  }
  world.pageable_copies += IsPageable(read) || IsPageable(written) ? 1 : 0;
  state->queue->Push(
      [&context, to, source, size] { CopyNow(context, to, source, size); });
  if (!IsPageable(written)) return kSuccess;
  // To pageable memory: the call returns when the copy is done.
  const Clock seen = state->timeline.clock;
  call.Unlock();
  state->queue->Wait();
  HostClock().Join(seen);
  return kSuccess;
}

Result cuMemsetD8Async(DevicePointer to, unsigned char value, size_t size,
                       StreamPointer stream) {
  Call call("cuMemsetD8Async", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, to != 0 && size > 0, kArguments);
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  ContextState& context = *call.context();
  SLUICE_FAKE_REQUIRE(call, state->context == &context, kStreamOfContext);
  World& world = TheWorld();
  const Range written = Resolve(world, to, size, context);
  if (written.broken) return call.Refuse(*written.broken, "destination");
  SLUICE_FAKE_REQUIRE(call, !IsPageable(written), kFillPinned);
  state->timeline.Enqueue(HostClock());
  NoteAccess(world, state->timeline, written, /*writes=*/true, "a fill");
  state->queue->Push(
      [&context, to, value, size] { FillNow(context, to, value, size); });
  return kSuccess;
}
