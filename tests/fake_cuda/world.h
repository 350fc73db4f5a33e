// The complete state of a process's fake driver, under one lock.
//
// At the process's end the world reports on stderr what was wrong: broken
// rules, races, lost contexts, forbidden copies of pageable memory, and live
// objects. If there is any finding, the process exits with 86. Findings are
// written to the node's folder at once, so that those of a killed child count
// for the process that made the node. At its end a process also writes its
// counts there if `counts=1` is set, as
//   sluice-train main_waits=12 other_waits=3 pageable_copies=0 contexts=0,1
// `contexts` are the GPUs on which the process ever had a context.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/device/cuda/api.h"
#include "proto/base/mutex.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/races.h"
#include "tests/fake_cuda/rules.h"
#include "tests/fake_cuda/settings.h"
#include "tests/fake_cuda/store.h"
#include "tests/fake_cuda/work_queue.h"

namespace sluice::fake_cuda {

using namespace device::cuda;  // the driver's own types; NOLINT

inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeviceUnavailable = 46;  // assumed for a lost GPU
inline constexpr Result kOperatingSystem = 304;
inline constexpr Result kNotFound = 500;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kNotSupported = 801;
inline constexpr int kExitWithFindings = 86;

struct StreamState;

struct ContextState {
  int device = 0;
  int retained = 0;          // the context lives while this is above 0
  Result lost = 0;           // if not 0, every call returns this error
  int running = 0;           // running host operations (control.h)
  AllocationPointer memory;  // the context's own (`context_kib`), or null
  std::shared_ptr<StreamState> null_stream;
};

struct StreamState {
  ContextState* context = nullptr;
  Timeline timeline;
  std::shared_ptr<WorkQueue> queue;
};

struct EventState {
  ContextState* context = nullptr;
  bool timed = false;
  std::shared_ptr<Recording> last;  // null before the first recording
  Clock seen;                       // the stream's clock at that recording
};

// The CPU faults at a reservation's addresses, except where cuMemSetAccess gave
// it access to host memory. Stream operations reach the same memory at `view`.
struct ReservationState {
  size_t size = 0;
  std::byte* view = nullptr;
};

struct MappingState {
  size_t size = 0;
  AllocationPointer memory;
  std::set<int> gpus;  // GPUs with access
  Uses uses;
};

struct RegistrationState {
  size_t size = 0;
  ContextState* by = nullptr;
  bool portable = false;
  Uses uses;
};

struct World {
  Mutex mutex;
  CondVar ran;  // notified when a host operation ends
  Settings settings;
  int process = 0;  // pid at cuInit; 0 before cuInit
  Store store;
  std::map<int, ContextState> contexts;  // primary contexts, by device
  std::map<MemoryHandle, AllocationPointer> handles;
  std::map<DevicePointer, ReservationState> reservations;
  std::map<DevicePointer, MappingState> mappings;
  std::map<DevicePointer, RegistrationState> registrations;
  std::map<StreamPointer, std::shared_ptr<StreamState>> streams;
  std::vector<std::shared_ptr<WorkQueue>> closed;  // destroyed streams' queues
  std::map<EventPointer, EventState> events;
  std::map<Library, std::map<std::string, Kernel>> libraries;
  std::map<Kernel, std::string> kernels;  // names of the live kernels
  RaceDetector races;
  // The recorded accesses (fake_cuda_take_accesses), by the stream's timeline.
  std::map<size_t, std::vector<Access>> accesses;
  size_t next_timeline = 0;
  uint64_t next_handle = 0x1000;
  std::map<std::string, int64_t> calls;
  std::array<int, static_cast<int>(Rule::kCount)> broken = {};
  std::vector<std::string> findings;
  int64_t pageable_copies = 0;
  // How often the process's first thread waited for a GPU, and how often all
  // other threads did.
  int64_t main_waits = 0, other_waits = 0;
  int64_t copies = 0;
  int64_t rdma_memories = 0;

  // Returns a new even handle: c10 takes a stream with an odd handle for one of
  // its pool.
  template <typename T>
  T NewHandle() {
    return reinterpret_cast<T>(next_handle += 64);
  }
  void Find(const std::string& finding);
  // Takes memory of a GPU without a handle, as for a context itself. Returns
  // null if the GPU has less free memory.
  AllocationPointer Hold(int device, size_t size);
  // Returns null if `context` is no live context.
  ContextState* LiveContext(Context context);
  // Counts that a host thread waits for a stream, an event, or a copy.
  void NoteWait();
  // Appends this process's counts to the file `counts` of the node's folder.
  void TellCounts() const;
  // Marks the context as lost from now on.
  void Lose(ContextState& context, const char* why);
  bool DeviceIsLost(int device) const;
  // Returns whether the context or its GPU is lost, so that the context's
  // streams do nothing more.
  bool IsGone(const ContextState& context) const;
  std::shared_ptr<StreamState> NewStream(ContextState* context);
  // Accepts no more work on the stream. AtExit waits for the stream's thread.
  void Close(const StreamState& stream);
  // Lists the live objects. Returns an empty string if there are none.
  std::string Alive() const;
  // Returns the registration that contains this byte, or null.
  RegistrationState* RegistrationAt(DevicePointer address);
  std::map<DevicePointer, ReservationState>::iterator ReservationAt(
      DevicePointer address);
};

// Never destroyed: the streams' threads outlive main.
World& TheWorld();

// Returns the operations that this host thread has waited for.
Clock& HostClock();
// Returns the contexts that this host thread has pushed and not popped.
std::vector<ContextState*>& ContextStack();
// Returns the context below all pushed ones, set by cuCtxSetCurrent, or null.
ContextState*& BaseContext();
// Returns the current context of this host thread, or null.
ContextState* CurrentContext();

}  // namespace sluice::fake_cuda
