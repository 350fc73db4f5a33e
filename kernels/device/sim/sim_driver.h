// The Driver of a simulated node.
//
// Every call first checks whether an injected failure is due, then checks its
// arguments as the real driver would, then acts. Handles are ids in tables of
// this process; processes share only the node's state file and memfds.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/ledger.h"
#include "kernels/device/sim/memory.h"
#include "kernels/device/sim/node.h"
#include "kernels/device/sim/stream.h"
#include "proto/base/mutex.h"

namespace sluice::device {

class SimDriver final : public Driver {
 public:
  explicit SimDriver(std::unique_ptr<NodeMapping> node);
  // Waits until the work on all streams has ended.
  ~SimDriver() override;

  std::string_view name() const override { return "sim"; }
  absl::StatusOr<std::vector<DeviceInfo>> Devices() override;

  absl::StatusOr<Bytes> Granularity(Placement where) override;
  absl::StatusOr<MemoryUse> Usage(Placement where) override;
  HostMemoryKind HostMemory() const override { return {}; }
  absl::StatusOr<std::map<Placement, Bytes>> HeldOutside() override;
  absl::StatusOr<Memory> Create(Placement where, Bytes size) override;
  absl::StatusOr<UniqueFd> Export(Memory memory) override;
  bool TellsHolders() const override;
  absl::StatusOr<bool> HeldByOthers(Memory memory) override;
  absl::StatusOr<Memory> Import(const UniqueFd& fd, Placement where,
                                Bytes size) override;
  absl::StatusOr<UniqueFd> Keep(Memory memory) override;
  absl::StatusOr<Memory> Adopt(UniqueFd kept, Placement where,
                               Bytes size) override;
  absl::Status Release(Memory memory) override;

  absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind) override;
  absl::Status FreeReservation(Address address, Bytes size) override;
  absl::Status Map(Address address, Bytes size, Memory memory) override;
  absl::Status Unmap(Address address, Bytes size) override;
  absl::Status SetAccess(Address address, Bytes size,
                         DeviceIndex device) override;
  absl::Status HostRegister(Address address, Bytes size) override;
  absl::Status HostUnregister(Address address) override;

  absl::StatusOr<Stream> CreateStream(DeviceIndex device) override;
  absl::Status DestroyStream(Stream stream) override;
  Stream ComputeStream(DeviceIndex device) override;
  absl::StatusOr<Stream> AdoptStream(DeviceIndex device, void* native) override;
  absl::StatusOr<void*> NativeStream(Stream stream) override;
  absl::StatusOr<Event> CreateEvent() override;
  absl::StatusOr<Event> CreateTimedEvent() override;
  absl::Status DestroyEvent(Event event) override;
  absl::Status RecordEvent(Event event, Stream stream) override;
  absl::Status StreamWaitEvent(Stream stream, Event event) override;
  absl::StatusOr<bool> QueryEvent(Event event) override;
  absl::StatusOr<std::optional<absl::Duration>> ElapsedTime(Event from,
                                                            Event to) override;
  absl::Status SynchronizeEvent(Event event) override;
  absl::Status SynchronizeStream(Stream stream) override;

  absl::Status CopyAsync(Address to, const std::byte* from, Bytes size,
                         CopyDirection direction, Stream stream) override;
  absl::Status FillAsync(Address to, std::byte value, Bytes size,
                         Stream stream) override;
  absl::StatusOr<Module> LoadModule(std::span<const std::byte> fatbin) override;
  absl::StatusOr<Function> GetFunction(Module module,
                                       const std::string& name) override;
  absl::Status Launch(Function function, const LaunchShape& shape,
                      std::span<void*> arguments, Stream stream) override;

  CallCounters counters() const override;

 private:
  using CompletionPointer = std::shared_ptr<Completion>;
  struct EventEntry {
    bool timed = false;
    DeviceIndex gpu;  // GPU of the last recording
    // Null if the event is complete: never recorded, or recorded without timing
    // on a compute stream.
    CompletionPointer record;
  };

  absl::Status CheckSize(Bytes size) const;
  absl::StatusOr<Memory> Register(
      absl::StatusOr<std::shared_ptr<PhysicalMemory>> memory,
      std::string_view call);
  // Returns a copy stream, or null for a compute stream. Fails with the
  // stream's first error, or if its GPU is lost.
  absl::StatusOr<std::shared_ptr<SimStream>> FindStream(Stream stream) const;
  Event NewEvent(bool timed);
  absl::StatusOr<EventEntry> Find(Event event) const;
  absl::StatusOr<CompletionPointer> LatestRecord(Event event) const;

  const std::unique_ptr<NodeMapping> node_;
  Ledger ledger_;

  mutable Mutex memory_mutex_;
  std::map<Memory, std::shared_ptr<PhysicalMemory>> memories_
      ABSL_GUARDED_BY(memory_mutex_);
  AddressSpace addresses_ ABSL_GUARDED_BY(memory_mutex_);
  std::map<Address, Bytes> registered_ ABSL_GUARDED_BY(memory_mutex_);

  mutable Mutex stream_mutex_;
  std::map<Stream, std::shared_ptr<SimStream>> streams_
      ABSL_GUARDED_BY(stream_mutex_);
  std::map<Event, EventEntry> events_ ABSL_GUARDED_BY(stream_mutex_);

  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> stream_synchronize_{0};
  std::atomic<uint64_t> event_synchronize_{0};
  std::atomic<uint64_t> copies_{0};
  std::atomic<int64_t> copied_[2] = {0, 0};
  std::atomic<int64_t> stall_ns_{0};
};

}  // namespace sluice::device
