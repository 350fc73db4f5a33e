#include "kernels/device/sim/sim_driver.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kernels/device/compute_stream.h"
#include "kernels/device/sim/link.h"
#include "kernels/device/timed_event.h"
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

}  // namespace

SimDriver::SimDriver(std::unique_ptr<NodeMapping> node)
    : node_(std::move(node)), ledger_(node_.get()) {}

SimDriver::~SimDriver() {
  std::map<Stream, std::shared_ptr<SimStream>> streams;
  {
    const MutexLock lock(stream_mutex_);
    streams.swap(streams_);
  }
  streams.clear();
}

absl::StatusOr<std::vector<DeviceInfo>> SimDriver::Devices() {
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

// --- physical memory -------------------------------------------------------

absl::StatusOr<Bytes> SimDriver::Granularity(Placement where) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Granularity"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
  return node_->config().granularity;
}

absl::StatusOr<MemoryUse> SimDriver::Usage(Placement where) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Usage"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
  return ledger_.Usage(where);
}

absl::StatusOr<std::map<Placement, Bytes>> SimDriver::HeldOutside() {
  SLUICE_RETURN_IF_ERROR(node_->Enter("HeldOutside"));
  return ledger_.HeldOutside();
}

absl::Status SimDriver::CheckSize(Bytes size) const {
  const Bytes granularity = node_->config().granularity;
  if (size.count() > 0 && size.count() % granularity.count() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("size {} must be a positive multiple of the granularity, {}",
                  FormatBytes(size), FormatBytes(granularity)));
}

absl::StatusOr<Memory> SimDriver::Register(
    absl::StatusOr<std::shared_ptr<PhysicalMemory>> memory,
    std::string_view call) {
  if (!memory.ok()) return Annotate(memory.status(), call);
  const Memory handle(next_id_++);
  const MutexLock lock(memory_mutex_);
  memories_.emplace(handle, *std::move(memory));
  return handle;
}

absl::StatusOr<Memory> SimDriver::Create(Placement where, Bytes size) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Create"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
  SLUICE_RETURN_IF_ERROR(CheckSize(size));
  return Register(PhysicalMemory::Create(&ledger_, where, size), "Create");
}

absl::StatusOr<UniqueFd> SimDriver::Export(Memory memory) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Export"));
  const MutexLock lock(memory_mutex_);
  const auto it = memories_.find(memory);
  if (it == memories_.end()) return NoSuch("memory", memory);
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(it->second->where()));
  return it->second->Export();
}

bool SimDriver::TellsHolders() const { return PhysicalMemory::TellsHolders(); }

absl::StatusOr<bool> SimDriver::HeldByOthers(Memory memory) {
  const MutexLock lock(memory_mutex_);
  const auto it = memories_.find(memory);
  if (it == memories_.end()) return NoSuch("memory", memory);
  return it->second->HeldByOthers();
}

absl::StatusOr<Memory> SimDriver::Import(const UniqueFd& fd, Placement where,
                                         Bytes size) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Import"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
  SLUICE_RETURN_IF_ERROR(CheckSize(size));
  return Register(PhysicalMemory::Import(&ledger_, fd, where, size), "Import");
}

absl::StatusOr<UniqueFd> SimDriver::Keep(Memory memory) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Keep"));
  const MutexLock lock(memory_mutex_);
  const auto it = memories_.find(memory);
  if (it == memories_.end()) return NoSuch("memory", memory);
  return it->second->Keep();
}

absl::StatusOr<Memory> SimDriver::Adopt(UniqueFd kept, Placement where,
                                        Bytes size) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Adopt"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(where));
  SLUICE_RETURN_IF_ERROR(CheckSize(size));
  return Register(PhysicalMemory::Adopt(&ledger_, std::move(kept), where, size),
                  "Adopt");
}

absl::Status SimDriver::Release(Memory memory) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Release"));
  const MutexLock lock(memory_mutex_);
  if (memories_.erase(memory) == 0) return NoSuch("memory", memory);
  return absl::OkStatus();
}

// --- virtual memory --------------------------------------------------------

absl::StatusOr<Address> SimDriver::Reserve(Bytes size, Placement::Kind kind) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Reserve"));
  SLUICE_RETURN_IF_ERROR(CheckSize(size));
  const MutexLock lock(memory_mutex_);
  return addresses_.Reserve(size, kind);
}

absl::Status SimDriver::FreeReservation(Address address, Bytes size) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("FreeReservation"));
  const MutexLock lock(memory_mutex_);
  return addresses_.Free(address, size);
}

absl::Status SimDriver::Map(Address address, Bytes size, Memory memory) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Map"));
  const MutexLock lock(memory_mutex_);
  const auto it = memories_.find(memory);
  if (it == memories_.end()) return NoSuch("memory", memory);
  return addresses_.Map(address, size, it->second);
}

absl::Status SimDriver::Unmap(Address address, Bytes size) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Unmap"));
  const MutexLock lock(memory_mutex_);
  return addresses_.Unmap(address, size);
}

absl::Status SimDriver::SetAccess(Address address, Bytes size,
                                  DeviceIndex device) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("SetAccess"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(Placement::Gpu(device)));
  const MutexLock lock(memory_mutex_);
  return addresses_.Allow(address, size);
}

absl::Status SimDriver::HostRegister(Address address, Bytes size) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("HostRegister"));
  if (address == nullptr || size.count() <= 0) {
    return absl::InvalidArgumentError("HostRegister of an empty range");
  }
  const MutexLock lock(memory_mutex_);
  if (registered_.emplace(address, size).second) return absl::OkStatus();
  return absl::InvalidArgumentError("this host memory is registered already");
}

absl::Status SimDriver::HostUnregister(Address address) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("HostUnregister"));
  const MutexLock lock(memory_mutex_);
  if (registered_.erase(address) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError("this host memory is not registered");
}

// --- streams and events ----------------------------------------------------

absl::StatusOr<Stream> SimDriver::CreateStream(DeviceIndex device) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("CreateStream"));
  SLUICE_RETURN_IF_ERROR(node_->CheckPlacement(Placement::Gpu(device)));
  const Stream handle(next_id_++);
  const MutexLock lock(stream_mutex_);
  streams_.emplace(handle, std::make_shared<SimStream>(node_.get(), device));
  return handle;
}

absl::Status SimDriver::DestroyStream(Stream stream) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("DestroyStream"));
  // Destroyed after the lock is released, because the destructor finishes the
  // stream's work.
  std::shared_ptr<SimStream> ends;
  const MutexLock lock(stream_mutex_);
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return NoSuch("stream", stream);
  ends = std::move(it->second);
  streams_.erase(it);
  return absl::OkStatus();
}

Stream SimDriver::ComputeStream(DeviceIndex device) {
  return ComputeStreamOf(device);
}

absl::StatusOr<Stream> SimDriver::AdoptStream(DeviceIndex, void*) {
  return absl::UnimplementedError(
      "a simulated GPU computes on the calling thread: there is no stream of "
      "somebody else's to order copies against");
}

absl::StatusOr<void*> SimDriver::NativeStream(Stream) {
  return absl::UnimplementedError(
      "a simulated GPU has no streams that anybody else could use");
}

absl::StatusOr<std::shared_ptr<SimStream>> SimDriver::FindStream(
    Stream stream) const {
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

absl::StatusOr<Event> SimDriver::CreateEvent() {
  SLUICE_RETURN_IF_ERROR(node_->Enter("CreateEvent"));
  return NewEvent(/*timed=*/false);
}

absl::StatusOr<Event> SimDriver::CreateTimedEvent() {
  SLUICE_RETURN_IF_ERROR(node_->Enter("CreateTimedEvent"));
  return NewEvent(/*timed=*/true);
}

Event SimDriver::NewEvent(bool timed) {
  const Event handle(next_id_++);
  const MutexLock lock(stream_mutex_);
  events_.emplace(handle, EventEntry{.timed = timed});
  return handle;
}

absl::Status SimDriver::DestroyEvent(Event event) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("DestroyEvent"));
  const MutexLock lock(stream_mutex_);
  if (events_.erase(event) == 0) return NoSuch("event", event);
  return absl::OkStatus();
}

absl::Status SimDriver::RecordEvent(Event event, Stream stream) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("RecordEvent"));
  SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
  // On a compute stream the record is complete: the calling thread has already
  // computed what precedes this call.
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

absl::StatusOr<SimDriver::EventEntry> SimDriver::Find(Event event) const {
  const MutexLock lock(stream_mutex_);
  const auto it = events_.find(event);
  if (it == events_.end()) return NoSuch("event", event);
  return it->second;
}

absl::StatusOr<SimDriver::CompletionPointer> SimDriver::LatestRecord(
    Event event) const {
  SLUICE_ASSIGN_OR_RETURN(EventEntry entry, Find(event));
  return std::move(entry.record);
}

absl::StatusOr<std::optional<absl::Duration>> SimDriver::ElapsedTime(Event from,
                                                                     Event to) {
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

absl::Status SimDriver::StreamWaitEvent(Stream stream, Event event) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("StreamWaitEvent"));
  SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
  SLUICE_ASSIGN_OR_RETURN(auto record, LatestRecord(event));
  if (record == nullptr || record->done()) return absl::OkStatus();
  if (copies != nullptr) {
    copies->Wait(std::move(record));
    return absl::OkStatus();
  }
  const int64_t begin = MonotonicNs();
  record->Wait();
  stall_ns_ += MonotonicNs() - begin;
  return absl::OkStatus();
}

absl::StatusOr<bool> SimDriver::QueryEvent(Event event) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("QueryEvent"));
  SLUICE_ASSIGN_OR_RETURN(const auto record, LatestRecord(event));
  return record == nullptr || record->done();
}

absl::Status SimDriver::SynchronizeEvent(Event event) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("SynchronizeEvent"));
  ++event_synchronize_;
  SLUICE_ASSIGN_OR_RETURN(const auto record, LatestRecord(event));
  if (record != nullptr) record->Wait();
  return absl::OkStatus();
}

absl::Status SimDriver::SynchronizeStream(Stream stream) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("SynchronizeStream"));
  ++stream_synchronize_;
  SLUICE_ASSIGN_OR_RETURN(const auto copies, FindStream(stream));
  if (copies == nullptr) return absl::OkStatus();
  auto record = std::make_shared<Completion>();
  copies->Record(record);
  record->Wait();
  return copies->status();
}

// --- copies and kernels ----------------------------------------------------

absl::Status SimDriver::CopyAsync(Address to, const std::byte* from, Bytes size,
                                  CopyDirection direction, Stream stream) {
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

absl::Status SimDriver::FillAsync(Address to, std::byte value, Bytes size,
                                  Stream stream) {
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

absl::StatusOr<Module> SimDriver::LoadModule(std::span<const std::byte>) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("LoadModule"));
  return NoKernels();
}

absl::StatusOr<Function> SimDriver::GetFunction(Module, const std::string&) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("GetFunction"));
  return NoKernels();
}

absl::Status SimDriver::Launch(Function, const LaunchShape&, std::span<void*>,
                               Stream) {
  SLUICE_RETURN_IF_ERROR(node_->Enter("Launch"));
  return NoKernels();
}

CallCounters SimDriver::counters() const {
  return {.stream_synchronize = stream_synchronize_,
          .event_synchronize = event_synchronize_,
          .copies = copies_,
          .copied_h2d = Bytes(copied_[0]),
          .copied_d2h = Bytes(copied_[1]),
          .stall = absl::Nanoseconds(stall_ns_.load())};
}

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
