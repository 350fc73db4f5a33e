// Calls for initialisation, devices and contexts.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/exports.h"

namespace sluice::fake_cuda {
namespace {

// Returns the number of findings of all processes of the node.
size_t FindingsOfTheNode(const std::string& folder) {
  std::ifstream file(folder + "/findings");
  size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

void AtExit() {
  World& world = TheWorld();
  if (world.process != getpid()) return;
  if (world.settings.Get("counts") != 0) world.TellCounts();
  const std::string alive = world.Alive();
  if (!alive.empty()) world.Find("left at the process's end: " + alive);
  const size_t all = FindingsOfTheNode(world.store.folder());
  world.store.Close();
  if (all == 0 && world.findings.empty()) {
    // Waits for the streams' threads: no library may be destroyed while a
    // thread still destroys its thread-local data of that library.
    for (const auto& queue : world.closed) {
      queue->HasEnded(std::chrono::seconds(2));
    }
    return;
  }
  std::fprintf(stderr, "fake libcuda: %zu findings (%zu in this process)\n",
               all, world.findings.size());
  std::fflush(nullptr);
  _exit(kExitWithFindings);
}

// Returns the driver's name of an error that the fake returns.
const char* NameOf(Result result) {
  switch (result) {
#define SLUICE_FAKE_NAME(code, name) \
  case code:                         \
    return "CUDA_ERROR_" name
    case kSuccess:
      return "CUDA_SUCCESS";
      SLUICE_FAKE_NAME(1, "INVALID_VALUE");
      SLUICE_FAKE_NAME(2, "OUT_OF_MEMORY");
      SLUICE_FAKE_NAME(3, "NOT_INITIALIZED");
      SLUICE_FAKE_NAME(46, "DEVICE_UNAVAILABLE");
      SLUICE_FAKE_NAME(100, "NO_DEVICE");
      SLUICE_FAKE_NAME(101, "INVALID_DEVICE");
      SLUICE_FAKE_NAME(200, "INVALID_IMAGE");
      SLUICE_FAKE_NAME(201, "INVALID_CONTEXT");
      SLUICE_FAKE_NAME(222, "UNSUPPORTED_PTX_VERSION");
      SLUICE_FAKE_NAME(304, "OPERATING_SYSTEM");
      SLUICE_FAKE_NAME(400, "INVALID_HANDLE");
      SLUICE_FAKE_NAME(500, "NOT_FOUND");
      SLUICE_FAKE_NAME(600, "NOT_READY");
      SLUICE_FAKE_NAME(700, "ILLEGAL_ADDRESS");
      SLUICE_FAKE_NAME(709, "CONTEXT_IS_DESTROYED");
      SLUICE_FAKE_NAME(712, "HOST_MEMORY_ALREADY_REGISTERED");
      SLUICE_FAKE_NAME(713, "HOST_MEMORY_NOT_REGISTERED");
      SLUICE_FAKE_NAME(801, "NOT_SUPPORTED");
      SLUICE_FAKE_NAME(999, "UNKNOWN");
#undef SLUICE_FAKE_NAME
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace sluice::fake_cuda

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuInit(unsigned flags) {
  Call call("cuInit", Needs::kNothing);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, flags == 0, kArguments);
  World& world = TheWorld();
  if (VisibleGpus(world.settings).empty()) return 100;
  if (world.process != 0) return kSuccess;
  world.process = getpid();
  world.store.Open(world.settings.node, world.settings.nodes,
                   world.settings.Get("keep_dead") != 0);
  std::atexit(AtExit);
  return kSuccess;
}

Result cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", Needs::kNothing);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, version != nullptr, kArguments);
  *version = static_cast<int>(TheWorld().settings.Get("version"));
  return kSuccess;
}

Result cuGetErrorName(Result result, const char** name) {
  Call call("cuGetErrorName", Needs::kNothing);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, name != nullptr, kArguments);
  *name = NameOf(result);
  return *name != nullptr ? kSuccess : kInvalidValue;
}

Result cuGetErrorString(Result result, const char** text) {
  Call call("cuGetErrorString", Needs::kNothing);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, text != nullptr, kArguments);
  *text = NameOf(result) != nullptr ? "of the fake driver" : nullptr;
  return *text != nullptr ? kSuccess : kInvalidValue;
}

Result cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, count != nullptr, kArguments);
  *count = static_cast<int>(VisibleGpus(TheWorld().settings).size());
  return kSuccess;
}

// A Device is the GPU's number in the node, not its ordinal, so that a program
// that confuses the two fails if CUDA_VISIBLE_DEVICES renumbers the GPUs.
Result cuDeviceGet(Device* device, int ordinal) {
  Call call("cuDeviceGet", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, device != nullptr, kArguments);
  const std::vector<int> visible = VisibleGpus(TheWorld().settings);
  SLUICE_FAKE_REQUIRE(
      call, ordinal >= 0 && ordinal < static_cast<int>(visible.size()),
      kDeviceExists);
  if (!call.CheckDevice(visible[ordinal])) return call.result();
  *device = visible[ordinal];
  return kSuccess;
}

Result cuDeviceGetName(char* name, int length, Device device) {
  Call call("cuDeviceGetName", Needs::kInitialised);
  if (call.failed() || !call.CheckDevice(device)) return call.result();
  SLUICE_FAKE_REQUIRE(call, name != nullptr && length > 0, kArguments);
  std::snprintf(name, static_cast<size_t>(length), "fake GPU%s",
                TheWorld().settings.Get("mig") != 0 ? " MIG 1g.10gb" : "");
  return kSuccess;
}

Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  Call call("cuDeviceGetUuid_v2", Needs::kInitialised);
  if (call.failed() || !call.CheckDevice(device)) return call.result();
  SLUICE_FAKE_REQUIRE(call, uuid != nullptr, kArguments);
  std::memset(uuid->bytes, kUuidByte, sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>(device);
  return kSuccess;
}

Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  Call call("cuDeviceGetAttribute", Needs::kInitialised);
  if (call.failed() || !call.CheckDevice(device)) return call.result();
  SLUICE_FAKE_REQUIRE(call, value != nullptr, kArguments);
  switch (attribute) {
    case kAttributeVirtualMemory:
    case kAttributePosixFd:
      *value = 1;
      break;
    case kAttributeHostNumaVirtualMemory:
      *value = static_cast<int>(TheWorld().settings.Get("host_numa"));
      break;
    case kAttributeHostNumaId:
      *value = static_cast<int>(TheWorld().settings.Get("numa"));
      break;
    case kAttributeRdmaOfVirtualMemory:
      *value = static_cast<int>(TheWorld().settings.Get("rdma"));
      break;
    case kAttributeCapabilityMajor:
      *value = static_cast<int>(TheWorld().settings.Get("capability") / 10);
      break;
    case kAttributeCapabilityMinor:
      *value = static_cast<int>(TheWorld().settings.Get("capability") % 10);
      break;
    case kAttributeComputeMode:
      *value = static_cast<int>(TheWorld().settings.Get("compute_mode"));
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}

Result cuDeviceGetPCIBusId(char* bus, int length, Device device) {
  Call call("cuDeviceGetPCIBusId", Needs::kInitialised);
  if (call.failed() || !call.CheckDevice(device)) return call.result();
  SLUICE_FAKE_REQUIRE(call, bus != nullptr && length >= 13, kArguments);
  // In upper case, as a driver may print it.
  std::snprintf(bus, static_cast<size_t>(length), "0000:%02X:00.0",
                device + 0x3A);
  return kSuccess;
}

Result cuDeviceTotalMem_v2(size_t* bytes, Device device) {
  Call call("cuDeviceTotalMem_v2", Needs::kInitialised);
  if (call.failed() || !call.CheckDevice(device)) return call.result();
  SLUICE_FAKE_REQUIRE(call, bytes != nullptr, kArguments);
  *bytes = static_cast<size_t>(TheWorld().settings.Get("memory_mib")) << 20;
  return kSuccess;
}

// --- contexts --------------------------------------------------------------

Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  Call call("cuDevicePrimaryCtxRetain", Needs::kInitialised);
  if (call.failed() || !call.CheckDevice(device)) return call.result();
  SLUICE_FAKE_REQUIRE(call, context != nullptr, kArguments);
  World& world = TheWorld();
  ContextState& state = world.contexts[device];
  state.device = device;
  const int64_t kib = world.settings.Get("context_kib");
  if (kib > 0 && state.memory == nullptr) {
    state.memory = world.Hold(device, static_cast<size_t>(kib) << 10);
    if (state.memory == nullptr) return kOutOfMemory;
  }
  ++state.retained;
  *context = reinterpret_cast<Context>(&state);
  return kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(Device device) {
  Call call("cuDevicePrimaryCtxRelease_v2", Needs::kInitialised,
            Call::kReleases);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it = world.contexts.find(device);
  SLUICE_FAKE_REQUIRE(call,
                      it != world.contexts.end() && it->second.retained > 0,
                      kReleaseRetained);
  if (--it->second.retained > 0) return call.Done();
  ContextState* const state = &it->second;
  const size_t left =
      std::erase_if(world.streams,
                    [&](const auto& s) { return s.second->context == state; }) +
      std::erase_if(world.events,
                    [&](const auto& e) { return e.second.context == state; }) +
      std::erase_if(world.registrations,
                    [&](const auto& r) { return r.second.by == state; });
  if (state->null_stream != nullptr) world.Close(*state->null_stream);
  state->null_stream.reset();
  state->memory.reset();
  if (left > 0) call.Refuse(Rule::kEmptyContext, fmt::format("{} left", left));
  return call.Done();
}

Result cuCtxGetCurrent(Context* context) {
  Call call("cuCtxGetCurrent", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, context != nullptr, kArguments);
  *context = reinterpret_cast<Context>(CurrentContext());
  return kSuccess;
}

Result cuCtxPushCurrent_v2(Context context) {
  Call call("cuCtxPushCurrent_v2", Needs::kInitialised);
  if (call.failed()) return call.result();
  ContextState* const state = TheWorld().LiveContext(context);
  SLUICE_FAKE_REQUIRE(call, state != nullptr, kKnownContext);
  ContextStack().push_back(state);
  return kSuccess;
}

Result cuCtxPopCurrent_v2(Context* context) {
  Call call("cuCtxPopCurrent_v2", Needs::kInitialised, Call::kReleases);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, !ContextStack().empty(), kPopPushed);
  if (context != nullptr) {
    *context = reinterpret_cast<Context>(ContextStack().back());
  }
  ContextStack().pop_back();
  return call.Done();
}
