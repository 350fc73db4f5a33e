// All that a process's fake driver knows, under one lock.
//
// At the process's end the world says on stderr what was wrong: rules that
// were broken, races, contexts that were lost, copies of pageable memory that
// were to be none, and what still lives; if there is anything, the process
// exits with 86. What is found goes to the node's folder at once, so that the
// findings of a killed child count for the process that made the node. So do,
// at a process's end, its counts (settings.h), as
//   sluice-train main_waits=12 other_waits=3 pageable_copies=0 contexts=0,1
// where the last are the GPUs on which the process ever had a context.
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
inline constexpr Result kDeviceUnavailable = 46;  // assumed: of a lost GPU
inline constexpr Result kOperatingSystem = 304;
inline constexpr Result kNotFound = 500;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kNotSupported = 801;
inline constexpr int kExitWithFindings = 86;

struct StreamState;

struct ContextState {
  int device = 0;
  int retained = 0;          // 0: it does not live
  Result lost = 0;           // the error that every call returns from then on
  int running = 0;           // host operations on its streams (control.h)
  AllocationPointer memory;  // that it takes by itself
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
  std::shared_ptr<Recording> last;  // null: never recorded
  Clock seen;
};

// The CPU's view of a reservation faults; the GPU's is elsewhere.
struct ReservationState {
  size_t size = 0;
  std::byte* view = nullptr;
};

struct MappingState {
  size_t size = 0;
  AllocationPointer memory;
  std::set<int> gpus;  // that have access
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
  CondVar ran;  // a host operation has ended
  Settings settings;
  int process = 0;  // 0: cuInit was not called
  Store store;
  std::map<int, ContextState> contexts;  // the primary ones, by device
  std::map<MemoryHandle, AllocationPointer> handles;
  std::map<DevicePointer, ReservationState> reservations;
  std::map<DevicePointer, MappingState> mappings;
  std::map<DevicePointer, RegistrationState> registrations;
  std::map<StreamPointer, std::shared_ptr<StreamState>> streams;
  std::vector<std::shared_ptr<WorkQueue>> closed;  // of streams that were
  std::map<EventPointer, EventState> events;
  std::map<Library, std::map<std::string, Kernel>> libraries;
  std::map<Kernel, std::string> kernels;  // the live ones' names
  RaceDetector races;
  // By timeline, of those that are asked for (control.h).
  std::map<size_t, std::vector<Access>> accesses;
  size_t next_timeline = 0;
  uint64_t next_handle = 0x1000;
  std::map<std::string, int64_t> calls;
  std::array<int, static_cast<int>(Rule::kCount)> broken = {};
  std::vector<std::string> findings;
  int64_t pageable_copies = 0;
  // How often the process's first thread, and any other, waited for a GPU.
  int64_t main_waits = 0, other_waits = 0;
  int64_t copies = 0;  // that were made
  int64_t rdma_memories = 0;

  // Even, as pointers are: c10 reads an odd stream as one of its pool.
  template <typename T>
  T NewHandle() {
    return reinterpret_cast<T>(next_handle += 64);
  }
  void Find(const std::string& finding);
  // Memory of a GPU that no handle is for, as a context's own. Null: there is
  // not so much.
  AllocationPointer Hold(int device, size_t size);
  // Null: it is none, or does not live.
  ContextState* LiveContext(Context context);
  // A host thread is about to wait for a stream, an event, or a copy.
  void NoteWait();
  // The line of this process, into the node's file.
  void TellCounts() const;
  // From now on the context is lost.
  void Lose(ContextState& context, const char* why);
  bool DeviceIsLost(int device) const;
  // Lost, or its GPU is: its streams do nothing more.
  bool IsGone(const ContextState& context) const;
  std::shared_ptr<StreamState> NewStream(ContextState* context);
  // No more is pushed there. At the process's end its thread is waited for.
  void Close(const StreamState& stream);
  // What still lives, in words; empty: nothing does.
  std::string Alive() const;
  // The registration that has this byte, or none.
  RegistrationState* RegistrationAt(DevicePointer address);
  std::map<DevicePointer, ReservationState>::iterator ReservationAt(
      DevicePointer address);
};

// Never destroyed: the streams' threads outlive main.
World& TheWorld();

// This host thread's: what it has waited for, its stack of contexts, and the
// one below them that the CUDA runtime sets.
Clock& HostClock();
std::vector<ContextState*>& ContextStack();
ContextState*& BaseContext();
// The one that calls are made in; null: none.
ContextState* CurrentContext();

}  // namespace sluice::fake_cuda
