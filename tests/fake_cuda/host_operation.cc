#include "tests/fake_cuda/host_operation.h"

#include "tests/fake_cuda/range.h"

namespace sluice::fake_cuda {
namespace {

using Work = std::function<void(const Views&)>;

// Runs on the stream's thread. The views stay valid until `work` ends: rule
// UnmapIdle forbids unmapping, and in a lost context call.cc waits for `work`.
void RunNow(ContextState& context, const Views& views, const Work& work) {
  World& world = TheWorld();
  {
    const MutexLock lock(world.mutex);
    if (world.IsGone(context)) return;
    ++context.running;
  }
  work(views);
  const MutexLock lock(world.mutex);
  --context.running;
  world.ran.NotifyAll();
}

// Returns whether the emulated GPU reads memory that is not pinned, without
// losing its context.
bool ReadsPageable(const World& world) {
  const auto played = world.settings.answers.find(Rule::kOperationPinned);
  return played != world.settings.answers.end() && played->second.code == 0 &&
         played->second.then == kSuccess;
}

DevicePointer AddressOf(const Access& access) {
  return reinterpret_cast<DevicePointer>(access.address);
}

}  // namespace

int fake_cuda_run(void* stream, const std::string& what,
                  const std::vector<Access>& accesses, const Work& work) {
  Call call(what, Needs::kContext);
  if (call.failed()) return call.result();
  return EnqueueHostOperation(call, static_cast<StreamPointer>(stream), what,
                              accesses, work);
}

Result EnqueueHostOperation(Call& call, StreamPointer stream,
                            const std::string& what,
                            const std::vector<Access>& accesses,
                            const Work& work) {
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  ContextState& context = *call.context();
  SLUICE_FAKE_REQUIRE(call, state->context == &context, kStreamOfContext);
  World& world = TheWorld();
  std::vector<Range> ranges;
  Views views;
  for (const Access& access : accesses) {
    const Range range = access.size == 0 ? Range{.kind = Range::Kind::kPinned}
                                         : Resolve(world, AddressOf(access),
                                                   access.size, context);
    if (range.broken) return call.Refuse(*range.broken);
    if (range.IsPageable() && !ReadsPageable(world)) {
      return call.RefuseRange(Rule::kOperationPinned, "", *state);
    }
    views.push_back(range.view);
    ranges.push_back(range);
  }
  state->timeline.Enqueue(HostClock());
  for (size_t i = 0; i < ranges.size(); ++i) {
    NoteAccess(world, state->timeline, ranges[i], accesses[i].writes, what);
  }
  state->queue->Push([&context, views, work] { RunNow(context, views, work); });
  return kSuccess;
}

bool fake_cuda_gone(int device) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  const auto it = world.contexts.find(device);
  return world.DeviceIsLost(device) ||
         (it != world.contexts.end() && world.IsGone(it->second));
}

int fake_cuda_current_device() {
  const ContextState* const context = CurrentContext();
  return context == nullptr ? -1 : context->device;
}

int fake_cuda_device_of(int ordinal) {
  const std::vector<int> visible = VisibleGpus(TheWorld().settings);
  return ordinal >= 0 && ordinal < static_cast<int>(visible.size())
             ? visible[ordinal]
             : -1;
}

bool fake_cuda_has_context(int device) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  const auto it = world.contexts.find(device);
  return it != world.contexts.end() && it->second.retained > 0;
}

void fake_cuda_find(const std::string& finding) {
  World& world = TheWorld();
  const MutexLock lock(world.mutex);
  world.Find(finding);
}

}  // namespace sluice::fake_cuda
