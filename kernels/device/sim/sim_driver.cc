#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/ledger.h"
#include "kernels/device/sim/link.h"
#include "kernels/device/sim/memory.h"
#include "kernels/device/sim/node.h"
#include "kernels/device/sim/stream.h"
#include "kernels/device/stream_rules.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

absl::Status NoSuch(const char* what, auto handle) {
  return absl::InvalidArgumentError(
      fmt::format("there is no {} {}", what, handle.value()));
}

absl::Status NoKernels() {
  return absl::UnimplementedError(
      "the simulated device runs no kernels: call the CPU reference");
}

// A call that FailCall knows first checks whether an injected failure is due,
// then its arguments as the real driver would, then acts. Handles are ids in
// this process's tables; processes share only the state file and memfds.
class SimDriver final : public Driver {
 public:
  explicit SimDriver(std::unique_ptr<NodeMapping> node)
      : node_(std::move(node)), ledger_(node_.get()) {}

  // Waits until the work on all streams has ended.
  ~SimDriver() override {
    std::map<Stream, std::shared_ptr<SimStream>> streams;
    {
      const MutexLock lock(stream_mutex_);
      streams.swap(streams_);
    }
    streams.clear();
  }

  std::string_view name() const override { return "sim"; }
  absl::StatusOr<std::vector<DeviceInfo>> Devices() override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Devices"));
    const SimConfig config = node_->config();
    std::vector<DeviceInfo> devices;
    for (size_t i = 0; i < config.gpus.size(); ++i) {
      const SimGpu& gpu = config.gpus[i];
      devices.push_back({.index = DeviceIndex(i),
                         .uuid = fmt::format("GPU-sim-{}", i),
                         .name = "Sluice simulated GPU",
                         .total_memory = gpu.memory,
                         .numa = gpu.numa,
                         .link = gpu.link});
    }
    return devices;
  }

  absl::StatusOr<Bytes> Granularity(Placement where) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Granularity"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
    return node_->config().granularity;
  }

  absl::StatusOr<MemoryUse> Usage(Placement where) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Usage"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
    return ledger_.Usage(where);
  }

  HostMemoryKind HostMemory() const override { return {}; }
  absl::StatusOr<std::map<Placement, Bytes>> HeldOutside() override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("HeldOutside"));
    return ledger_.HeldOutside();
  }

  absl::StatusOr<Memory> Create(Placement where, Bytes size) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Create"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
    SLUICE_RETURN_IF_ERROR(CheckSize(size));
    return Register(PhysicalMemory::Create(&ledger_, where, size), "Create");
  }

  absl::StatusOr<UniqueFd> Export(Memory memory) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Export"));
    const MutexLock lock(memory_mutex_);
    const auto it = memories_.find(memory);
    if (it == memories_.end()) return NoSuch("memory", memory);
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(it->second->where()));
    return it->second->Export();
  }

  bool TellsHolders() const override { return PhysicalMemory::TellsHolders(); }

  absl::StatusOr<bool> HeldByOthers(Memory memory) override {
    const MutexLock lock(memory_mutex_);
    const auto it = memories_.find(memory);
    if (it == memories_.end()) return NoSuch("memory", memory);
    return it->second->HeldByOthers();
  }

  absl::StatusOr<Memory> Import(const UniqueFd& fd, Placement where,
                                Bytes size) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Import"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
    SLUICE_RETURN_IF_ERROR(CheckSize(size));
    return Register(PhysicalMemory::Import(&ledger_, fd, where, size),
                    "Import");
  }

  absl::StatusOr<UniqueFd> Keep(Memory memory) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Keep"));
    const MutexLock lock(memory_mutex_);
    const auto it = memories_.find(memory);
    if (it == memories_.end()) return NoSuch("memory", memory);
    return it->second->Keep();
  }

  absl::StatusOr<Memory> Adopt(UniqueFd kept, Placement where,
                               Bytes size) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Adopt"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
    SLUICE_RETURN_IF_ERROR(CheckSize(size));
    return Register(
        PhysicalMemory::Adopt(&ledger_, std::move(kept), where, size), "Adopt");
  }

  absl::Status Release(Memory memory) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Release"));
    const MutexLock lock(memory_mutex_);
    if (memories_.erase(memory) == 0) return NoSuch("memory", memory);
    return absl::OkStatus();
  }

  absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Reserve"));
    SLUICE_RETURN_IF_ERROR(CheckSize(size));
    const MutexLock lock(memory_mutex_);
    return addresses_.Reserve(size, kind);
  }

  absl::Status FreeReservation(Address address, Bytes size) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("FreeReservation"));
    const MutexLock lock(memory_mutex_);
    return addresses_.Free(address, size);
  }

  absl::Status Map(Address address, Bytes size, Memory memory) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Map"));
    const MutexLock lock(memory_mutex_);
    const auto it = memories_.find(memory);
    if (it == memories_.end()) return NoSuch("memory", memory);
    return addresses_.Map(address, size, it->second);
  }

  absl::Status Unmap(Address address, Bytes size) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Unmap"));
    const MutexLock lock(memory_mutex_);
    return addresses_.Unmap(address, size);
  }

  absl::Status SetAccess(Address address, Bytes size,
                         DeviceIndex device) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("SetAccess"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(Placement::Gpu(device)));
    const MutexLock lock(memory_mutex_);
    return addresses_.Allow(address, size);
  }

  absl::Status HostRegister(Address address, Bytes size) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("HostRegister"));
    if (address == nullptr || size.count() <= 0) {
      return absl::InvalidArgumentError("HostRegister of an empty range");
    }
    const MutexLock lock(memory_mutex_);
    if (registered_.emplace(address, size).second) return absl::OkStatus();
    return absl::InvalidArgumentError("this host memory is registered already");
  }

  absl::Status HostUnregister(Address address) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("HostUnregister"));
    const MutexLock lock(memory_mutex_);
    if (registered_.erase(address) == 1) return absl::OkStatus();
    return absl::InvalidArgumentError("this host memory is not registered");
  }

  absl::StatusOr<Stream> CreateStream(DeviceIndex device) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("CreateStream"));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(Placement::Gpu(device)));
    const Stream handle(next_id_++);
    const MutexLock lock(stream_mutex_);
    streams_.emplace(handle, std::make_shared<SimStream>(node_.get(), device));
    return handle;
  }

  absl::Status DestroyStream(Stream stream) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("DestroyStream"));
    // Outlives `lock`, because the stream's destructor waits for the work.
    std::shared_ptr<SimStream> ends;
    const MutexLock lock(stream_mutex_);
    const auto it = streams_.find(stream);
    if (it == streams_.end()) return NoSuch("stream", stream);
    ends = std::move(it->second);
    streams_.erase(it);
    return absl::OkStatus();
  }

  Stream ComputeStream(DeviceIndex device) override {
    return ComputeStreamOf(device);
  }

  absl::StatusOr<Stream> AdoptStream(DeviceIndex, void*) override {
    return absl::UnimplementedError(
        "a simulated GPU computes on the calling thread: no other library has "
        "a stream to order copies against");
  }

  absl::StatusOr<void*> NativeStream(Stream) override {
    return absl::UnimplementedError(
        "a simulated GPU has no streams that another library could use");
  }

  absl::StatusOr<Event> CreateEvent() override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("CreateEvent"));
    return NewEvent(/*timed=*/false);
  }

  absl::StatusOr<Event> CreateTimedEvent() override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("CreateTimedEvent"));
    return NewEvent(/*timed=*/true);
  }

  absl::Status DestroyEvent(Event event) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("DestroyEvent"));
    const MutexLock lock(stream_mutex_);
    if (events_.erase(event) == 0) return NoSuch("event", event);
    return absl::OkStatus();
  }

  absl::Status RecordEvent(Event event, Stream stream) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("RecordEvent"));
    SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
    // On a compute stream the record is complete: the calling thread has
    // already computed what precedes this call.
    auto record = copies == nullptr ? nullptr : std::make_shared<Completion>();
    {
      const MutexLock lock(stream_mutex_);
      const auto it = events_.find(event);
      if (it == events_.end()) return NoSuch("event", event);
      EventEntry& entry = it->second;
      entry.gpu = copies == nullptr ? ComputeGpu(stream) : copies->gpu();
      entry.record =
          copies == nullptr && entry.timed ? Completion::Now() : record;
    }
    if (copies != nullptr) copies->Record(std::move(record));
    return absl::OkStatus();
  }

  absl::Status StreamWaitEvent(Stream stream, Event event) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("StreamWaitEvent"));
    SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
    SLUICE_ASSIGN_OR_RETURN(auto record, LatestRecord(event));
    if (record == nullptr) return absl::OkStatus();
    if (copies != nullptr) {
      if (!record->done()) copies->Wait(std::move(record));
      return absl::OkStatus();
    }
    if (!record->done()) {
      const int64_t begin = MonotonicNs();
      record->Wait();
      stall_ns_ += MonotonicNs() - begin;
    }
    return record->status();
  }

  absl::StatusOr<bool> QueryEvent(Event event) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("QueryEvent"));
    SLUICE_ASSIGN_OR_RETURN(const auto record, LatestRecord(event));
    return record == nullptr || record->done();
  }

  absl::StatusOr<std::optional<absl::Duration>> ElapsedTime(Event from,
                                                            Event to) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("ElapsedTime"));
    SLUICE_ASSIGN_OR_RETURN(const EventEntry first, Find(from));
    SLUICE_ASSIGN_OR_RETURN(const EventEntry last, Find(to));
    SLUICE_RETURN_IF_ERROR(
        CheckTimes({first.timed, first.record != nullptr, first.gpu},
                   {last.timed, last.record != nullptr, last.gpu}));
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(Placement::Gpu(first.gpu)));
    if (!first.record->done() || !last.record->done()) return std::nullopt;
    return absl::Nanoseconds(last.record->time_ns() - first.record->time_ns());
  }

  absl::Status SynchronizeEvent(Event event) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("SynchronizeEvent"));
    ++event_synchronize_;
    SLUICE_ASSIGN_OR_RETURN(const auto record, LatestRecord(event));
    if (record != nullptr) record->Wait();
    return absl::OkStatus();
  }

  absl::Status SynchronizeStream(Stream stream) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("SynchronizeStream"));
    ++stream_synchronize_;
    SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
    if (copies == nullptr) return absl::OkStatus();
    auto record = std::make_shared<Completion>();
    copies->Record(record);
    record->Wait();
    return copies->status();
  }

  absl::Status CopyAsync(Address to, const std::byte* from, Bytes size,
                         CopyDirection direction, Stream stream) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("CopyAsync"));
    SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
    if (size.count() < 0 || to == nullptr || from == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("CopyAsync of {} from {} to {}", FormatBytes(size),
                      static_cast<const void*>(from), static_cast<void*>(to)));
    }
    {
      const MutexLock lock(memory_mutex_);
      SLUICE_RETURN_IF_ERROR(addresses_.CheckTouchable(from, size));
      SLUICE_RETURN_IF_ERROR(addresses_.CheckTouchable(to, size));
    }
    ++copies_;
    copied_[static_cast<int>(direction)] += size.count();
    if (copies != nullptr) {
      copies->Copy({to, from, size, direction});
      return absl::OkStatus();
    }
    int64_t ready_ns = MonotonicNs();
    return CopyOverLink(*node_, ComputeGpu(stream), to, from, size, direction,
                        ready_ns);
  }

  absl::Status FillAsync(Address to, std::byte value, Bytes size,
                         Stream stream) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("FillAsync"));
    SLUICE_ASSIGN_OR_RETURN(const auto fills, FindStream(stream));
    if (size.count() < 0 || to == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("FillAsync of {} at {}", FormatBytes(size),
                      static_cast<const void*>(to)));
    }
    {
      const MutexLock lock(memory_mutex_);
      SLUICE_RETURN_IF_ERROR(addresses_.CheckTouchable(to, size));
    }
    if (fills != nullptr) {
      fills->Fill({to, value, size});
    } else {
      std::memset(to, static_cast<int>(value), size.size());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Module> LoadModule(std::span<const std::byte>) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("LoadModule"));
    return NoKernels();
  }

  absl::StatusOr<Function> GetFunction(Module, const std::string&) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("GetFunction"));
    return NoKernels();
  }

  absl::Status Launch(Function, const LaunchShape&, std::span<void*>,
                      Stream) override {
    SLUICE_RETURN_IF_ERROR(node_->Enter("Launch"));
    return NoKernels();
  }

  CallCounters counters() const override {
    return {.stream_synchronize = stream_synchronize_,
            .event_synchronize = event_synchronize_,
            .copies = copies_,
            .copied_h2d = Bytes(copied_[0]),
            .copied_d2h = Bytes(copied_[1]),
            .stall = absl::Nanoseconds(stall_ns_.load())};
  }

 private:
  using CompletionPointer = std::shared_ptr<Completion>;
  struct EventEntry {
    bool timed = false;
    DeviceIndex gpu;  // GPU of the last recording
    // Null if the event is complete: never recorded, or untimed and recorded on
    // a compute stream.
    CompletionPointer record;
  };

  absl::Status CheckSize(Bytes size) const {
    const Bytes granularity = node_->config().granularity;
    if (size.count() > 0 && size.count() % granularity.count() == 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(fmt::format(
        "size {} must be a positive multiple of the granularity, {}",
        FormatBytes(size), FormatBytes(granularity)));
  }

  absl::StatusOr<Memory> Register(
      absl::StatusOr<std::shared_ptr<PhysicalMemory>> memory,
      std::string_view call) {
    if (!memory.ok()) return Annotate(memory.status(), call);
    const Memory handle(next_id_++);
    const MutexLock lock(memory_mutex_);
    memories_.emplace(handle, *std::move(memory));
    return handle;
  }

  // Returns a copy stream, or null for a compute stream. Fails with the
  // stream's first error, or if its GPU is lost.
  absl::StatusOr<std::shared_ptr<SimStream>> FindStream(Stream stream) const {
    if (IsCompute(stream)) {
      SLUICE_RETURN_IF_ERROR(
          node_->CheckPlacement(Placement::Gpu(ComputeGpu(stream))));
      return nullptr;
    }
    std::shared_ptr<SimStream> found;
    {
      const MutexLock lock(stream_mutex_);
      const auto it = streams_.find(stream);
      if (it == streams_.end()) return NoSuch("stream", stream);
      found = it->second;
    }
    SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(Placement::Gpu(found->gpu())));
    SLUICE_RETURN_IF_ERROR(found->status());
    return found;
  }

  Event NewEvent(bool timed) {
    const Event handle(next_id_++);
    const MutexLock lock(stream_mutex_);
    events_.emplace(handle, EventEntry{.timed = timed});
    return handle;
  }

  absl::StatusOr<EventEntry> Find(Event event) const {
    const MutexLock lock(stream_mutex_);
    const auto it = events_.find(event);
    if (it == events_.end()) return NoSuch("event", event);
    return it->second;
  }

  absl::StatusOr<CompletionPointer> LatestRecord(Event event) const {
    SLUICE_ASSIGN_OR_RETURN(EventEntry entry, Find(event));
    return std::move(entry.record);
  }

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

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> OpenOwnedSimDriver(
    const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(auto node, NodeMapping::Open(directory, Books::kOwn));
  return std::make_unique<SimDriver>(std::move(node));
}

absl::StatusOr<std::unique_ptr<Driver>> OpenSimDriver(
    const std::string& directory) {
  return OpenSimDriver(directory, UniqueFd());
}

absl::StatusOr<std::unique_ptr<Driver>> OpenSimDriver(
    const std::string& directory, const UniqueFd& clocks) {
  SLUICE_ASSIGN_OR_RETURN(auto node,
                          NodeMapping::Open(directory, Books::kShared, clocks));
  return std::make_unique<SimDriver>(std::move(node));
}

}  // namespace sluice::device
