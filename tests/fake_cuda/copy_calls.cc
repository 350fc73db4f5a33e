// Calls that copy and fill memory.
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

struct Source {
  DevicePointer address = 0;
  // A pageable source's bytes at the time of the call; null if the source is
  // pinned or a GPU's memory.
  std::shared_ptr<std::vector<std::byte>> staged;
};

// Runs on the stream's thread. The memory may have been unmapped since the
// call.
void CopyNow(ContextState& context, DevicePointer to, const Source& from,
             size_t size) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  if (world.IsGone(context)) return;
  const std::byte* source = nullptr;
  if (from.staged != nullptr) {
    source = from.staged->data();
  } else {
    const Range read = Resolve(world, from.address, size, context);
    if (read.broken)
      return world.Lose(context, "a copy reads memory that is gone");
    source = read.view;
  }
  const Range written = Resolve(world, to, size, context);
  if (written.broken) {
    return world.Lose(context, "a copy writes memory that is gone");
  }
  std::memmove(written.view, source, size);
  const int64_t corrupt = world.settings.Get("corrupt");
  if (corrupt > 0 && ++world.copies % corrupt == 0) {
    written.view[size / 2] ^= std::byte{0x10};
  }
}

// Runs on the stream's thread, like CopyNow.
void FillNow(ContextState& context, DevicePointer to, unsigned char value,
             size_t size) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  if (world.IsGone(context)) return;
  const Range written = Resolve(world, to, size, context);
  if (written.broken) {
    return world.Lose(context, "a fill writes memory that is gone");
  }
  std::memset(written.view, value, size);
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
  if (written.broken) {
    return call.RefuseRange(*written.broken, "destination", *state);
  }
  const Range read = Resolve(world, from, size, context);
  if (read.broken) {
    return call.RefuseRange(*read.broken, "source", *state);
  }
  state->timeline.Enqueue(HostClock());
  Source source{from, nullptr};
  if (read.IsPageable()) {
    // The bytes are staged before the call returns: cuda.h, "API
    // synchronization behavior".
    source.staged =
        std::make_shared<std::vector<std::byte>>(read.view, read.view + size);
  } else {
    NoteAccess(world, state->timeline, read, /*writes=*/false, "a copy");
  }
  if (!written.IsPageable()) {
    NoteAccess(world, state->timeline, written, /*writes=*/true, "a copy");
  }
  if (read.IsPageable() || written.IsPageable()) {
    ++world.pageable_copies;
    if (world.settings.Get("pageable") == 0) {
      world.Find(fmt::format(
          "cuMemcpyAsync: {} bytes of pageable memory (Sluice's own rule: "
          "host memory that is copied is pinned)",
          size));
    }
  }
  state->queue->Push(
      [&context, to, source, size] { CopyNow(context, to, source, size); });
  if (!written.IsPageable()) return kSuccess;
  // A copy to pageable memory returns only when it is done.
  const Clock seen = state->timeline.clock;
  world.NoteWait();
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
  if (written.broken) {
    return call.RefuseRange(*written.broken, "destination", *state);
  }
  SLUICE_FAKE_REQUIRE(call, !written.IsPageable(), kFillPinned);
  state->timeline.Enqueue(HostClock());
  NoteAccess(world, state->timeline, written, /*writes=*/true, "a fill");
  state->queue->Push(
      [&context, to, value, size] { FillNow(context, to, value, size); });
  return kSuccess;
}
