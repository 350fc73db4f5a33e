// The Driver implemented on libcuda.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/device/cuda/address_space.h"
#include "kernels/device/cuda/contexts.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/driver.h"
#include "proto/base/mutex.h"

namespace sluice::device::cuda {

class CudaDriver final : public Driver {
 public:
  // Initialises the library. Unavailable: no GPU is usable.
  static absl::StatusOr<std::unique_ptr<Driver>> Start(
      std::unique_ptr<LoadedLibrary> library, HostMemoryChoice host);
  ~CudaDriver() override;

  std::string_view name() const override { return "cuda"; }
  absl::StatusOr<std::vector<DeviceInfo>> Devices() override;

  absl::StatusOr<Bytes> Granularity(Placement where) override;
  absl::StatusOr<MemoryUse> Usage(Placement where) override;
  HostMemoryKind HostMemory() const override { return maker_.HostMemory(); }
  absl::StatusOr<std::map<Placement, Bytes>> HeldOutside() override;
  absl::StatusOr<Memory> Create(Placement where, Bytes size) override;
  absl::StatusOr<UniqueFd> Export(Memory memory) override;
  bool TellsHolders() const override { return false; }
  absl::StatusOr<bool> HeldByOthers(Memory) override {
    return absl::UnimplementedError(
        "the CUDA driver does not tell who maps exported memory");
  }
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
  struct StreamEntry {
    StreamPointer stream = nullptr;
    DeviceIndex device;
    bool adopted = false;  // made by another library: never destroyed here
  };
  // An event belongs to the context in which it was made. So it is made at its
  // first recording, and made again when it is recorded on another GPU.
  struct EventEntry {
    EventPointer event = nullptr;
    DeviceIndex device;
    bool timed = false;
  };

  CudaDriver(std::unique_ptr<LoadedLibrary> library, std::vector<Gpu> gpus,
             HostMemoryChoice host);

  absl::StatusOr<DeviceInfo> Describe(DeviceIndex index) const;
  absl::StatusOr<ContextScope> Enter(DeviceIndex device);
  // Returns how many bytes at `where` this process's handles hold.
  Bytes Own(Placement where) const;
  absl::StatusOr<Bytes> HeldByOthersOn(Placement where);
  Memory Register(MemoryPointer memory);
  absl::StatusOr<MemoryPointer> Find(Memory memory) const;
  absl::StatusOr<StreamPointer> MakeStream(DeviceIndex device);
  // Returns the stream's entry. Makes a compute stream at its first use.
  absl::StatusOr<StreamEntry> Find(Stream stream);
  absl::StatusOr<EventEntry> Find(Event event) const;
  Event NewEvent(bool timed);
  absl::StatusOr<EventPointer> EventOn(Event event, DeviceIndex device);

  const std::unique_ptr<LoadedLibrary> library_;
  Contexts contexts_;
  const MemoryMaker maker_;

  mutable Mutex memory_mutex_;
  std::map<Memory, MemoryPointer> memories_ ABSL_GUARDED_BY(memory_mutex_);
  AddressSpace addresses_ ABSL_GUARDED_BY(memory_mutex_);

  mutable Mutex stream_mutex_;
  std::map<Stream, StreamEntry> streams_ ABSL_GUARDED_BY(stream_mutex_);
  std::map<Event, EventEntry> events_ ABSL_GUARDED_BY(stream_mutex_);
  std::map<Module, Library> modules_ ABSL_GUARDED_BY(stream_mutex_);
  std::map<Function, Kernel> functions_ ABSL_GUARDED_BY(stream_mutex_);

  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> stream_synchronize_{0};
  std::atomic<uint64_t> event_synchronize_{0};
  std::atomic<uint64_t> copies_{0};
  std::atomic<int64_t> copied_[2] = {0, 0};
};

}  // namespace sluice::device::cuda
