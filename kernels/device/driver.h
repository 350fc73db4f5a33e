// The device seam: every device call of Sluice goes through one `Driver`.
//
// It has two implementations:
//   sim   memfd, mmap and threads; a simulated node is a directory with
//         shared state (links, GPU sizes, injected failures) that outlives
//         any process (kernels/device/sim);
//   cuda  the real driver API, loaded at run time from libcuda.so.1, so one
//         binary runs with and without a GPU (kernels/device/cuda).
//
// The calls mirror the CUDA driver's virtual memory, stream and event calls.
// Sim enforces the rules of the CUDA driver: a size is a multiple of the
// granularity, a mapping needs SetAccess before it is touched, and a handle is
// mapped whole.
//
// Compute streams. On cuda a compute stream is a CUstream. On sim ATen's CPU
// operators run on the caller, so the compute stream *is* the calling thread:
// an event that is recorded on this stream is complete at once, and a wait that
// is enqueued on it blocks the caller and counts as `stall` (CallCounters).
//
// Errors: a failed driver call becomes an absl::Status with the call's name,
// the driver's error name and the arguments that matter.
//   kResourceExhausted  the GPU, or the host, has too little free memory
//   kUnavailable        the device is lost
//   kInvalidArgument    the call breaks a rule of this file
//   kUnimplemented      this driver or device does not have the feature
// Thread safety: all methods are thread-safe. Destroying an object that another
// thread uses is a bug of the caller.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"

namespace sluice::device {

struct Placement {
  enum class Kind { kGpu, kHost };
  Kind kind = Kind::kGpu;
  uint64_t ordinal = 0;  // GPU ordinal or NUMA node

  static Placement Gpu(DeviceIndex gpu) { return {Kind::kGpu, gpu.value()}; }
  static Placement Host(NumaIndex numa) { return {Kind::kHost, numa.value()}; }
  auto operator<=>(const Placement&) const = default;
};

// Prefix of the name of a PCI link; the device's PCI address follows.
inline constexpr char kPciLink[] = "pci-";

struct DeviceInfo {
  DeviceIndex index;
  std::string uuid;  // "GPU-…", the key that operators and dcgm-exporter use
  std::string name;
  Bytes total_memory;
  NumaIndex numa;
  // The GPU's host link: "pcie0"; on cuda "pci-0000:3b:00.0".
  std::string link;
  // NVIDIA's compute capability without the point, such as 90; 0 on sim.
  int capability = 0;
  // True for a MIG instance of a GPU. CUDA shows a process only one instance.
  bool is_instance = false;
  // The reason why the GPU is unusable, then ": " and the command that helps.
  // Empty if the GPU is usable. With a fault only `index` is known.
  std::string fault;
};

// Opaque handles. 0 means none.
using Memory =
    Id<struct MemoryTag>;  // physical memory (CUmemGenericAllocation…)
using Stream = Id<struct StreamTag>;
using Event = Id<struct EventTag>;
using Module = Id<struct ModuleTag>;
using Function = Id<struct FunctionTag>;

// An address in this process. On cuda the CPU can access host memory only.
using Address = std::byte*;

enum class CopyDirection { kHostToDevice, kDeviceToHost };

// Numbers of calls, bytes and time since the driver was opened.
struct CallCounters {
  uint64_t stream_synchronize = 0;
  uint64_t event_synchronize = 0;
  uint64_t copies = 0;
  Bytes copied_h2d;
  Bytes copied_d2h;
  // How long compute streams waited for events. 0 on cuda.
  absl::Duration stall;
};

// The kind of pinned host memory. Processes that share memory must use the same
// kind, because each kind is pinned differently. So a rank uses memfd if its
// daemon does.
struct HostMemoryKind {
  // On cuda "HOST_NUMA", which the driver makes, or "memfd", which every
  // process pins for itself. Empty if the driver has only one kind (sim).
  std::string name;
  // The reason for using "memfd", the slower kind. Empty with "HOST_NUMA".
  std::string why;
};
// HostMemoryKind::why if the configuration chose memfd.
inline constexpr char kToldSo[] = "as host_memory in [device] says";

// The size of a place, and how much of it all processes together use.
struct MemoryUse {
  Bytes total;
  Bytes used;
};

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;

  // Returns "sim" or "cuda".
  virtual std::string_view name() const = 0;

  // --- devices -------------------------------------------------------------
  virtual absl::StatusOr<std::vector<DeviceInfo>> Devices() = 0;

  // --- physical memory -----------------------------------------------------
  // Returns the unit of memory sizes (cuMemGetAllocationGranularity).
  virtual absl::StatusOr<Bytes> Granularity(Placement where) = 0;
  // Returns cuMemGetInfo's figures, or for host memory the machine's. On sim,
  // memory of a dead process counts as free at once.
  virtual absl::StatusOr<MemoryUse> Usage(Placement where) = 0;
  virtual HostMemoryKind HostMemory() const = 0;
  // Returns the bytes that other processes hold, by place: the used bytes minus
  // those of this process's handles. On sim a daemon finds memory that ranks of
  // a killed daemon still hold. On cuda the bytes include contexts, fragments
  // and no host memory. A place is missing if its GPU does not answer (Usage
  // returns the reason), and on sim if nothing is held there. Nothing is
  // cached: a call takes milliseconds, or as long as Linux needs.
  virtual absl::StatusOr<std::map<Placement, Bytes>> HeldOutside() = 0;
  // Makes memory (cuMemCreate), which on sim is zero-filled.
  virtual absl::StatusOr<Memory> Create(Placement where, Bytes size) = 0;
  // Exports memory that this process made with Create, or on sim adopted
  // (cuMemExportToShareableHandle). InvalidArgument: the memory was imported;
  // pass on the descriptor that it was imported from.
  virtual absl::StatusOr<UniqueFd> Export(Memory memory) = 0;
  // Returns whether HeldByOthers works: on sim if Linux shows which
  // processes can access exported memory (probed once), on cuda never.
  virtual bool TellsHolders() const = 0;
  // Returns whether any process has a descriptor or mapping of this memory
  // besides the handle. `false` is valid until the next export. Unimplemented:
  // !TellsHolders, or another process made the memory.
  virtual absl::StatusOr<bool> HeldByOthers(Memory memory) = 0;
  // Makes a handle for memory that another process exported
  // (cuMemImportFromShareableHandle). The caller keeps `fd`.
  virtual absl::StatusOr<Memory> Import(const UniqueFd& fd, Placement where,
                                        Bytes size) = 0;
  // Returns a descriptor from which a later process can adopt (Adopt) memory
  // that this process made, so that the memory outlives a daemon. HeldByOthers
  // ignores the descriptor. Works for the same memory as Export.
  virtual absl::StatusOr<UniqueFd> Keep(Memory memory) = 0;
  // Takes over memory from a descriptor that Keep returned. InvalidArgument:
  // `kept` is no such descriptor for this place and size.
  virtual absl::StatusOr<Memory> Adopt(UniqueFd kept, Placement where,
                                       Bytes size) = 0;
  // Releases the handle (cuMemRelease). The memory becomes free once all its
  // mappings and exported descriptors in all processes are gone.
  virtual absl::Status Release(Memory memory) = 0;

  // --- virtual memory ------------------------------------------------------
  // Reserves addresses for memory of one kind. The kind is needed because on
  // cuda a memfd is mapped by mmap, and other memory by the driver.
  virtual absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind) = 0;
  virtual absl::Status FreeReservation(Address address, Bytes size) = 0;
  // Maps all of `memory` at `address`, which lies in a reservation of its kind.
  virtual absl::Status Map(Address address, Bytes size, Memory memory) = 0;
  virtual absl::Status Unmap(Address address, Bytes size) = 0;
  // Makes a mapped range readable and writable from `device`, and host memory
  // also from the CPU. One call may span many mappings.
  virtual absl::Status SetAccess(Address address, Bytes size,
                                 DeviceIndex device) = 0;
  // Pins memory that Create did not make (cuMemHostRegister). On sim this is
  // only bookkeeping.
  virtual absl::Status HostRegister(Address address, Bytes size) = 0;
  virtual absl::Status HostUnregister(Address address) = 0;

  // --- streams and events --------------------------------------------------
  // Makes an in-order stream of the device, for copies or kernels.
  virtual absl::StatusOr<Stream> CreateStream(DeviceIndex device) = 0;
  // Work on the stream still finishes; on sim, this call waits for it.
  virtual absl::Status DestroyStream(Stream stream) = 0;
  // Returns the stream on which this thread computes (see the file comment).
  virtual Stream ComputeStream(DeviceIndex device) = 0;
  // Returns the handle of a stream that another library made on the device
  // (torch's CUstream; null is the default stream). The handle cannot be
  // destroyed, and the stream must outlive all calls with it. kUnimplemented on
  // sim, which has no such streams.
  virtual absl::StatusOr<Stream> AdoptStream(DeviceIndex device,
                                             void* native) = 0;
  // Returns a handle's CUstream, for libraries that enqueue work on it (torch,
  // NCCL). The CUstream lives as long as the handle. kUnimplemented on sim.
  virtual absl::StatusOr<void*> NativeStream(Stream stream) = 0;
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  // Makes an event that also records when it was reached, for ElapsedTime. On
  // cuda each recording then reads a clock.
  virtual absl::StatusOr<Event> CreateTimedEvent() = 0;
  virtual absl::Status DestroyEvent(Event event) = 0;
  // As in CUDA, an event that was never recorded counts as complete.
  virtual absl::Status RecordEvent(Event event, Stream stream) = 0;
  virtual absl::Status StreamWaitEvent(Stream stream, Event event) = 0;
  virtual absl::StatusOr<bool> QueryEvent(Event event) = 0;
  // Returns the time between the events' last recordings, negative if `to` was
  // reached first, or nullopt if an event is not reached yet. It is accurate to
  // about a microsecond; on cuda it may contain other streams' work. The call
  // orders nothing: ask QueryEvent before touching memory that events guard.
  // InvalidArgument: no timing, no recording, or recordings on two GPUs.
  virtual absl::StatusOr<std::optional<absl::Duration>> ElapsedTime(
      Event from, Event to) = 0;
  // Blocks the host: for set-up, teardown and tests only.
  virtual absl::Status SynchronizeEvent(Event event) = 0;
  virtual absl::Status SynchronizeStream(Stream stream) = 0;

  // --- copies and kernels --------------------------------------------------
  // Copies in stream order; on sim at the speed of the device's link in that
  // direction. If a copy fails, every later call on its stream returns the
  // error. Both ranges stay valid until the copy is done. Sim checks that
  // addresses inside its reservations are mapped with access.
  virtual absl::Status CopyAsync(Address to, const std::byte* from, Bytes size,
                                 CopyDirection direction, Stream stream) = 0;
  // Fills GPU memory or pinned host memory with `value` in stream order. Errors
  // are those of CopyAsync. On sim a fill takes no link time.
  virtual absl::Status FillAsync(Address to, std::byte value, Bytes size,
                                 Stream stream) = 0;
  // Loads a fatbin; kUnimplemented on sim, which has no kernels.
  virtual absl::StatusOr<Module> LoadModule(
      std::span<const std::byte> fatbin) = 0;
  virtual absl::StatusOr<Function> GetFunction(Module module,
                                               const std::string& name) = 0;
  virtual absl::Status Launch(Function function, const LaunchShape& shape,
                              std::span<void*> arguments, Stream stream) = 0;

  virtual CallCounters counters() const = 0;
};

// Opens the simulated node in `directory`, made by CreateSimNode (sim.h) or by
// sluiced. NotFound names the directory and what to do.
absl::StatusOr<std::unique_ptr<Driver>> OpenSimDriver(
    const std::string& directory);

// kAuto chooses HOST_NUMA if the driver can make it, else memfd.
enum class HostMemoryChoice { kAuto, kMemfd };

// Returns Unavailable with the reason if libcuda.so.1 is missing, the driver is
// too old, or no GPU is usable. If only some GPUs are usable, the others have a
// DeviceInfo::fault.
absl::StatusOr<std::unique_ptr<Driver>> OpenCudaDriver(
    HostMemoryChoice host = HostMemoryChoice::kAuto);

}  // namespace sluice::device
