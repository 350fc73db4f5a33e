#include "tests/fake_cuda/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fake_cuda/of_thread.h"

namespace sluice::fake_cuda {
namespace {

constexpr size_t kFindingsPrinted = 20;

}  // namespace

World& TheWorld() {
  static World* const world = [] {
    auto* const made = new World;
    if (const char* text = std::getenv("SLUICE_FAKE_CUDA")) {
      made->settings.Apply(text);
    }
    return made;
  }();
  return *world;
}

Clock& HostClock() { return OfThread<Clock>(); }

std::vector<ContextState*>& ContextStack() {
  return OfThread<std::vector<ContextState*>>();
}

ContextState*& BaseContext() {
  thread_local ContextState* context = nullptr;
  return context;
}

ContextState* CurrentContext() {
  const auto& stack = ContextStack();
  return stack.empty() ? BaseContext() : stack.back();
}

ContextState* World::LiveContext(Context context) {
  for (auto& [device, state] : contexts) {
    if (reinterpret_cast<Context>(&state) == context && state.retained > 0) {
      return &state;
    }
  }
  return nullptr;
}

void World::Find(const std::string& finding) {
  if (findings.size() < kFindingsPrinted) {
    std::fprintf(stderr, "fake libcuda: %s\n", finding.c_str());
  }
  findings.push_back(finding);
  if (store.folder().empty()) return;  // before cuInit, so there is no node yet
  std::ofstream(store.folder() + "/findings", std::ios::app) << finding << "\n";
}

void World::NoteWait() { ++(gettid() == getpid() ? main_waits : other_waits); }

void World::TellCounts() const {
  std::vector<int> devices;
  for (const auto& [device, state] : contexts) devices.push_back(device);
  // Calls of cuCtx… change the thread that calls, and no GPU.
  int64_t launches = 0, others = 0;
  for (const auto& [name, count] : calls) {
    if (name.starts_with("cuCtx")) continue;
    const bool launch = name == "cuLaunchKernel" || !name.starts_with("cu");
    (launch ? launches : others) += count;
  }
  std::ofstream(store.folder() + "/counts", std::ios::app) << fmt::format(
      "{} main_waits={} other_waits={} pageable_copies={} launches={} "
      "other_calls={} contexts={}\n",
      program_invocation_short_name, main_waits, other_waits, pageable_copies,
      launches, others, fmt::join(devices, ","));
}

void World::Lose(ContextState& context, const char* why) {
  if (context.lost != kSuccess) return;
  context.lost = kIllegalAddress;
  Find(fmt::format("GPU {}: {}: the context is lost", context.device, why));
}

bool World::DeviceIsLost(int device) const {
  if (settings.lose == device) return true;
  const std::string mark = fmt::format("{}/lost-gpu{}", store.folder(), device);
  return access(mark.c_str(), F_OK) == 0;
}

bool World::IsGone(const ContextState& context) const {
  return context.lost != kSuccess || DeviceIsLost(context.device);
}

std::shared_ptr<StreamState> World::NewStream(ContextState* context) {
  auto stream = std::make_shared<StreamState>();
  stream->context = context;
  stream->timeline.stream = next_timeline++;
  stream->queue = WorkQueue::Start(settings.Get("jitter_us"));
  return stream;
}

AllocationPointer World::Hold(int device, size_t size) {
  AllocationPointer made;
  const auto limit = static_cast<size_t>(settings.Get("memory_mib")) << 20;
  store.Create({kLocationDevice, device}, size, limit, /*exportable=*/false,
               /*dirty=*/true, made);
  return made;
}

void World::Close(const StreamState& stream) {
  stream.queue->Close();
  std::erase_if(closed, [](const auto& queue) {
    return queue->HasEnded(std::chrono::milliseconds(0));
  });
  closed.push_back(stream.queue);
}

std::string World::Alive() const {
  std::string text;
  const auto count = [&](size_t n, const char* what) {
    if (n == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, what);
  };
  count(handles.size(), "memory handles");
  count(mappings.size(), "mappings");
  count(reservations.size(), "reservations");
  count(registrations.size(), "registrations");
  count(streams.size(), "streams");
  count(events.size(), "events");
  count(libraries.size(), "libraries");
  for (const auto& [device, context] : contexts) {
    if (context.retained > 0) {
      count(context.retained,
            fmt::format("holds on the context of GPU {}", device).c_str());
    }
  }
  count(ContextStack().size(), "contexts pushed and not popped");
  return text;
}

RegistrationState* World::RegistrationAt(DevicePointer address) {
  auto it = registrations.upper_bound(address);
  if (it == registrations.begin()) return nullptr;
  --it;
  return address < it->first + it->second.size ? &it->second : nullptr;
}

std::map<DevicePointer, ReservationState>::iterator World::ReservationAt(
    DevicePointer address) {
  auto it = reservations.upper_bound(address);
  if (it == reservations.begin()) return reservations.end();
  --it;
  return address < it->first + it->second.size ? it : reservations.end();
}

}  // namespace sluice::fake_cuda
