#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "kernels/device/cuda/address_space.h"
#include "kernels/device/cuda/contexts.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/driver.h"
#include "kernels/device/stream_rules.h"
#include "proto/base/cgroup.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::device::cuda {
namespace {

// Part of CUDA's name of a MIG instance ("NVIDIA A100 MIG 3g.20gb"). The name
// is used, because no attribute identifies an instance.
constexpr char kInstance[] = " MIG ";

absl::StatusOr<std::string> NameOf(const LoadedLibrary* library, Device device,
                                   const std::string& remark) {
  char name[256] = {};
  SLUICE_CUDA(library, cuDeviceGetName, remark, name, sizeof(name), device);
  return name;
}

// Formats the UUID as nvidia-smi -L does: GPU- or MIG-8-4-4-4-12.
absl::StatusOr<std::string> UuidOf(const LoadedLibrary* library, Device device,
                                   const std::string& remark) {
  Uuid uuid = {};
  SLUICE_CUDA(library, cuDeviceGetUuid_v2, remark, &uuid, device);
  SLUICE_ASSIGN_OR_RETURN(const std::string name,
                          NameOf(library, device, remark));
  std::string text = name.find(kInstance) != name.npos ? "MIG" : "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

MemoryUse HostUsage() {
  const auto memory = MachineMemory::Read();
  return {.total = memory.total, .used = memory.total - memory.available};
}

// Examines the GPU. Each fault ends with ": " and the command that solves it.
absl::StatusOr<Gpu> LookAt(const LoadedLibrary* library, int index) {
  const std::string remark = fmt::format("of GPU {}", index);
  Device device = 0;
  SLUICE_CUDA(library, cuDeviceGet, remark, &device, index);
  for (const int attribute : {kAttributeVirtualMemory, kAttributePosixFd}) {
    int supported = 0;
    SLUICE_CUDA(library, cuDeviceGetAttribute, remark, &supported, attribute,
                device);
    if (supported != 0) continue;
    return Gpu{.fault = absl::UnavailableError(fmt::format(
                   "GPU {} has no virtual memory with descriptors (attribute "
                   "{}), so Sluice cannot share its memory: nvidia-smi -q",
                   index, attribute))};
  }
  int mode = kComputeModeDefault;
  SLUICE_CUDA(library, cuDeviceGetAttribute, remark, &mode,
              kAttributeComputeMode, device);
  if (mode == kComputeModeDefault) return Gpu{.device = device, .fault = {}};
  SLUICE_ASSIGN_OR_RETURN(const std::string uuid,
                          UuidOf(library, device, remark));
  return Gpu{.fault = absl::UnavailableError(fmt::format(
                 "GPU {} does not let several processes use it (compute mode "
                 "{}), as sluiced and its ranks do: sudo nvidia-smi -i {} -c 0",
                 index, mode, uuid))};
}

absl::Status Lost(int index, const absl::Status& why) {
  return absl::UnavailableError(fmt::format(
      "GPU {} does not answer ({}); a reset or a reboot may mend it: "
      "nvidia-smi -q",
      index, std::string(why.message())));
}

// Returns a remark on CUDA_VISIBLE_DEVICES if it may hide all GPUs, else "".
std::string HiddenBy() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return "";
  return fmt::format(
      ", and CUDA_VISIBLE_DEVICES is '{}', which hides every GPU that it does "
      "not list, or lists after an unknown one: nvidia-smi -L",
      Printable(visible));
}

absl::StatusOr<std::vector<Gpu>> FindGpus(const LoadedLibrary* library) {
  int count = 0;
  SLUICE_CUDA(library, cuDeviceGetCount, "", &count);
  std::vector<Gpu> gpus;
  for (int i = 0; i < count; ++i) {
    auto gpu = LookAt(library, i);
    if (!gpu.ok()) gpu = Gpu{.fault = Lost(i, gpu.status())};
    gpus.push_back(*std::move(gpu));
  }
  if (gpus.empty()) {
    return absl::UnavailableError("libcuda finds no GPU" + HiddenBy());
  }
  const bool any =
      std::ranges::any_of(gpus, [](const Gpu& gpu) { return gpu.fault.ok(); });
  if (!any) return gpus.front().fault;
  return gpus;
}

// A failure of cuInit becomes Unavailable: it means that no GPU is usable.
absl::Status Initialise(const LoadedLibrary* library) {
  const absl::Status status =
      library->ToStatus(library->functions().cuInit(0), "cuInit");
  if (!status.ok()) {
    return absl::UnavailableError(std::string(status.message()) + HiddenBy());
  }
  int version = 0;
  SLUICE_CUDA(library, cuDriverGetVersion, "", &version);
  if (version >= kOldestDriver) return absl::OkStatus();
  return absl::UnavailableError(fmt::format(
      "the NVIDIA driver is for CUDA {}.{}; {}.{} or newer is needed",
      version / 1000, version % 1000 / 10, kOldestDriver / 1000,
      kOldestDriver % 1000 / 10));
}

class CudaDriver final : public Driver {
 public:
  static absl::StatusOr<std::unique_ptr<Driver>> Start(
      std::unique_ptr<LoadedLibrary> library, HostMemoryChoice host) {
    SLUICE_RETURN_IF_ERROR(Initialise(library.get()));
    SLUICE_ASSIGN_OR_RETURN(auto gpus, FindGpus(library.get()));
    return std::unique_ptr<Driver>(
        new CudaDriver(std::move(library), std::move(gpus), host));
  }

  ~CudaDriver() override {
    const MutexLock lock(stream_mutex_);
    const Functions& f = library_->functions();
    // The library that created an adopted stream destroys it.
    for (const auto& [id, entry] : streams_) {
      if (entry.adopted) continue;
      const auto scope = Enter(entry.device);
      if (!scope.ok()) continue;  // destroyed with its context
      f.cuStreamSynchronize(entry.stream);
      f.cuStreamDestroy_v2(entry.stream);
    }
    for (const auto& [id, entry] : events_) {
      if (entry.event == nullptr) continue;
      const auto scope = Enter(entry.device);
      if (!scope.ok()) continue;
      f.cuEventDestroy_v2(entry.event);
    }
    for (const auto& [id, module] : modules_) f.cuLibraryUnload(module);
  }

  std::string_view name() const override { return "cuda"; }
  absl::StatusOr<std::vector<DeviceInfo>> Devices() override {
    std::vector<DeviceInfo> devices;
    for (size_t i = 0; i < contexts_.gpus().size(); ++i) {
      const absl::StatusOr<DeviceInfo> found = Describe(DeviceIndex(i));
      if (found.ok()) {
        devices.push_back(*found);
        continue;
      }
      absl::Status fault = contexts_.gpus()[i].fault;
      if (fault.ok()) fault = Lost(static_cast<int>(i), found.status());
      devices.push_back({.index = DeviceIndex(i)});
      devices.back().fault = std::string(fault.message());
    }
    return devices;
  }

  absl::StatusOr<Bytes> Granularity(Placement where) override {
    return maker_.Granularity(where);
  }

  absl::StatusOr<MemoryUse> Usage(Placement where) override {
    SLUICE_RETURN_IF_ERROR(maker_.CheckPlacement(where));
    if (where.kind == Placement::Kind::kHost) return HostUsage();
    SLUICE_ASSIGN_OR_RETURN(const auto scope,
                            Enter(DeviceIndex(where.ordinal)));
    size_t free = 0, total = 0;
    SLUICE_CUDA(library_, cuMemGetInfo_v2,
                fmt::format("of GPU {}", where.ordinal), &free, &total);
    return MemoryUse{Bytes(static_cast<int64_t>(total)),
                     Bytes(static_cast<int64_t>(total - free))};
  }

  HostMemoryKind HostMemory() const override { return maker_.HostMemory(); }
  absl::StatusOr<std::map<Placement, Bytes>> HeldOutside() override {
    std::map<Placement, Bytes> held;
    for (size_t i = 0; i < contexts_.gpus().size(); ++i) {
      const Placement where = Placement::Gpu(DeviceIndex(i));
      // A lost GPU is left out, so that the others' bytes are still reported.
      const auto on_gpu = HeldByOthersOn(where);
      if (on_gpu.ok()) held[where] = *on_gpu;
    }
    return held;
  }

  absl::StatusOr<Memory> Create(Placement where, Bytes size) override {
    SLUICE_ASSIGN_OR_RETURN(auto memory, maker_.Create(where, size));
    return Register(std::move(memory));
  }

  absl::StatusOr<UniqueFd> Export(Memory memory) override {
    SLUICE_ASSIGN_OR_RETURN(const auto physical, Find(memory));
    return maker_.Export(*physical);
  }

  bool TellsHolders() const override { return false; }
  absl::StatusOr<bool> HeldByOthers(Memory) override {
    return absl::UnimplementedError(
        "the CUDA driver does not report which processes map exported memory");
  }
  absl::StatusOr<Memory> Import(const UniqueFd& fd, Placement where,
                                Bytes size) override {
    SLUICE_ASSIGN_OR_RETURN(auto memory, maker_.Import(fd, where, size));
    return Register(std::move(memory));
  }

  // An exported descriptor keeps the memory alive after its maker's end.
  absl::StatusOr<UniqueFd> Keep(Memory memory) override {
    return Export(memory);
  }

  absl::StatusOr<Memory> Adopt(UniqueFd kept, Placement where,
                               Bytes size) override {
    return Import(kept, where, size);
  }

  absl::Status Release(Memory memory) override {
    const MutexLock lock(memory_mutex_);
    if (memories_.erase(memory) == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("there is no memory {}", memory.value()));
  }

  absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind) override {
    if (size.count() <= 0) {
      return absl::InvalidArgumentError("Reserve of an empty range");
    }
    const MutexLock lock(memory_mutex_);
    return addresses_.Reserve(size, kind);
  }

  absl::Status FreeReservation(Address address, Bytes size) override {
    const MutexLock lock(memory_mutex_);
    return addresses_.Free(address, size);
  }

  absl::Status Map(Address address, Bytes size, Memory memory) override {
    SLUICE_ASSIGN_OR_RETURN(auto physical, Find(memory));
    const MutexLock lock(memory_mutex_);
    return addresses_.Map(address, size, std::move(physical));
  }

  absl::Status Unmap(Address address, Bytes size) override {
    const MutexLock lock(memory_mutex_);
    return addresses_.Unmap(address, size);
  }

  absl::Status SetAccess(Address address, Bytes size,
                         DeviceIndex device) override {
    const MutexLock lock(memory_mutex_);
    return addresses_.Allow(address, size, device);
  }

  absl::Status HostRegister(Address address, Bytes size) override {
    const MutexLock lock(memory_mutex_);
    return addresses_.Pin(address, size, std::nullopt);
  }

  absl::Status HostUnregister(Address address) override {
    const MutexLock lock(memory_mutex_);
    return addresses_.Unpin(address);
  }

  absl::StatusOr<Stream> CreateStream(DeviceIndex device) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamPointer stream, MakeStream(device));
    const Stream handle(next_id_++);
    const MutexLock lock(stream_mutex_);
    streams_.emplace(handle, StreamEntry{stream, device});
    return handle;
  }

  absl::Status DestroyStream(Stream stream) override {
    if (IsCompute(stream)) {
      return absl::InvalidArgumentError(
          fmt::format("there is no stream {}", stream.value()));
    }
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry entry, Find(stream));
    if (entry.adopted) {
      return absl::InvalidArgumentError(fmt::format(
          "stream {} is not the driver's to destroy", stream.value()));
    }
    // Enter comes first: if it fails, the stream still exists.
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
    {
      const MutexLock lock(stream_mutex_);
      streams_.erase(stream);
    }
    SLUICE_CUDA(library_, cuStreamDestroy_v2, "", entry.stream);
    return absl::OkStatus();
  }

  Stream ComputeStream(DeviceIndex device) override {
    return ComputeStreamOf(device);
  }

  absl::StatusOr<Stream> AdoptStream(DeviceIndex device,
                                     void* native) override {
    SLUICE_RETURN_IF_ERROR(
        Enter(device).status());  // checks that the GPU exists
    const auto pointer = static_cast<StreamPointer>(native);
    const MutexLock lock(stream_mutex_);
    for (const auto& [handle, entry] : streams_) {
      if (entry.adopted && entry.stream == pointer && entry.device == device) {
        return handle;
      }
    }
    const Stream handle(next_id_++);
    streams_.emplace(handle, StreamEntry{pointer, device, /*adopted=*/true});
    return handle;
  }

  absl::StatusOr<void*> NativeStream(Stream stream) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry entry, Find(stream));
    return entry.stream;
  }

  absl::StatusOr<Event> CreateEvent() override {
    return NewEvent(/*timed=*/false);
  }

  absl::StatusOr<Event> CreateTimedEvent() override {
    return NewEvent(/*timed=*/true);
  }

  absl::Status DestroyEvent(Event event) override {
    SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
    if (entry.event == nullptr) {
      const MutexLock lock(stream_mutex_);
      events_.erase(event);
      return absl::OkStatus();
    }
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
    {
      const MutexLock lock(stream_mutex_);
      events_.erase(event);
    }
    // Waits that are already enqueued stay valid: CUDA keeps what they need.
    SLUICE_CUDA(library_, cuEventDestroy_v2, "", entry.event);
    return absl::OkStatus();
  }

  absl::Status RecordEvent(Event event, Stream stream) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
    SLUICE_ASSIGN_OR_RETURN(const EventPointer pointer,
                            EventOn(event, on.device));
    SLUICE_CUDA(library_, cuEventRecord, "", pointer, on.stream);
    return absl::OkStatus();
  }

  absl::Status StreamWaitEvent(Stream stream, Event event) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry waiting, Find(stream));
    SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
    if (entry.event == nullptr) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(waiting.device));
    SLUICE_CUDA(library_, cuStreamWaitEvent, "", waiting.stream, entry.event,
                0);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> QueryEvent(Event event) override {
    SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
    if (entry.event == nullptr) return true;
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
    const Result result = library_->functions().cuEventQuery(entry.event);
    if (result == kNotReady) return false;
    SLUICE_RETURN_IF_ERROR(library_->ToStatus(result, "cuEventQuery"));
    return true;
  }

  absl::StatusOr<std::optional<absl::Duration>> ElapsedTime(Event from,
                                                            Event to) override {
    SLUICE_ASSIGN_OR_RETURN(const EventEntry first, Find(from));
    SLUICE_ASSIGN_OR_RETURN(const EventEntry last, Find(to));
    SLUICE_RETURN_IF_ERROR(
        CheckTimes({first.timed, first.event != nullptr, first.device},
                   {last.timed, last.event != nullptr, last.device}));
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(first.device));
    float milliseconds = 0;
    const Result result = library_->functions().cuEventElapsedTime(
        &milliseconds, first.event, last.event);
    if (result == kNotReady) return std::nullopt;
    SLUICE_RETURN_IF_ERROR(library_->ToStatus(result, "cuEventElapsedTime"));
    return absl::Milliseconds(milliseconds);
  }

  absl::Status SynchronizeEvent(Event event) override {
    ++event_synchronize_;
    SLUICE_ASSIGN_OR_RETURN(const EventEntry entry, Find(event));
    if (entry.event == nullptr) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(entry.device));
    SLUICE_CUDA(library_, cuEventSynchronize, "", entry.event);
    return absl::OkStatus();
  }

  absl::Status SynchronizeStream(Stream stream) override {
    ++stream_synchronize_;
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
    SLUICE_CUDA(library_, cuStreamSynchronize, "", on.stream);
    return absl::OkStatus();
  }

  absl::Status CopyAsync(Address to, const std::byte* from, Bytes size,
                         CopyDirection direction, Stream stream) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
    if (size.count() < 0 || to == nullptr || from == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("CopyAsync of {} from {} to {}", FormatBytes(size),
                      static_cast<const void*>(from), static_cast<void*>(to)));
    }
    ++copies_;
    copied_[static_cast<int>(direction)] += size.count();
    if (size == Bytes(0)) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
    // With unified addressing the driver finds the direction from the
    // addresses, even if both are in host memory.
    SLUICE_CUDA(library_, cuMemcpyAsync, RangeName(to, size),
                reinterpret_cast<DevicePointer>(to),
                reinterpret_cast<DevicePointer>(from), size.size(), on.stream);
    return absl::OkStatus();
  }

  absl::Status FillAsync(Address to, std::byte value, Bytes size,
                         Stream stream) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
    if (size.count() < 0 || to == nullptr) {
      return absl::InvalidArgumentError(fmt::format(
          "FillAsync of {} at {}", FormatBytes(size), static_cast<void*>(to)));
    }
    if (size == Bytes(0)) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
    SLUICE_CUDA(library_, cuMemsetD8Async, RangeName(to, size),
                reinterpret_cast<DevicePointer>(to),
                static_cast<unsigned char>(value), size.size(), on.stream);
    return absl::OkStatus();
  }

  absl::StatusOr<Module> LoadModule(
      std::span<const std::byte> fatbin) override {
    Library library = nullptr;
    SLUICE_CUDA(library_, cuLibraryLoadData,
                fmt::format("of {} bytes", fatbin.size()), &library,
                fatbin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    const Module handle(next_id_++);
    const MutexLock lock(stream_mutex_);
    modules_.emplace(handle, library);
    return handle;
  }

  absl::StatusOr<Function> GetFunction(Module module,
                                       const std::string& name) override {
    const MutexLock lock(stream_mutex_);
    const auto it = modules_.find(module);
    if (it == modules_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("there is no module {}", module.value()));
    }
    Kernel kernel = nullptr;
    SLUICE_CUDA(library_, cuLibraryGetKernel, "of " + name, &kernel, it->second,
                name.c_str());
    const Function handle(next_id_++);
    functions_.emplace(handle, kernel);
    return handle;
  }

  absl::Status Launch(Function function, const LaunchShape& shape,
                      std::span<void*> arguments, Stream stream) override {
    SLUICE_ASSIGN_OR_RETURN(const StreamEntry on, Find(stream));
    Kernel kernel = nullptr;
    {
      const MutexLock lock(stream_mutex_);
      const auto it = functions_.find(function);
      if (it == functions_.end()) {
        return absl::InvalidArgumentError(
            fmt::format("there is no function {}", function.value()));
      }
      kernel = it->second;
    }
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(on.device));
    // `kernel` belongs to a CUlibrary, so CUDA launches it in the current
    // context.
    SLUICE_CUDA(library_, cuLaunchKernel, "", kernel, shape.grid[0],
                shape.grid[1], shape.grid[2], shape.block[0], shape.block[1],
                shape.block[2], shape.shared_bytes, on.stream, arguments.data(),
                nullptr);
    return absl::OkStatus();
  }

  CallCounters counters() const override {
    return {.stream_synchronize = stream_synchronize_,
            .event_synchronize = event_synchronize_,
            .copies = copies_,
            .copied_h2d = Bytes(copied_[0]),
            .copied_d2h = Bytes(copied_[1])};
  }

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
             HostMemoryChoice host)
      : library_(std::move(library)),
        contexts_(library_.get(), std::move(gpus)),
        maker_(library_.get(), &contexts_, host),
        addresses_(library_.get(), &contexts_, &maker_) {}

  absl::StatusOr<DeviceInfo> Describe(DeviceIndex index) const {
    SLUICE_ASSIGN_OR_RETURN(const Device device, contexts_.DeviceOf(index));
    const std::string remark = fmt::format("of GPU {}", index.value());
    SLUICE_ASSIGN_OR_RETURN(const std::string uuid,
                            UuidOf(library_.get(), device, remark));
    SLUICE_ASSIGN_OR_RETURN(const std::string name,
                            NameOf(library_.get(), device, remark));
    char bus[32] = {};
    SLUICE_CUDA(library_, cuDeviceGetPCIBusId, remark, bus, sizeof(bus),
                device);
    size_t memory = 0;
    SLUICE_CUDA(library_, cuDeviceTotalMem_v2, remark, &memory, device);
    int numa = 0;
    SLUICE_CUDA(library_, cuDeviceGetAttribute, remark, &numa,
                kAttributeHostNumaId, device);
    int major = 0, minor = 0;
    SLUICE_CUDA(library_, cuDeviceGetAttribute, remark, &major,
                kAttributeCapabilityMajor, device);
    SLUICE_CUDA(library_, cuDeviceGetAttribute, remark, &minor,
                kAttributeCapabilityMinor, device);
    return DeviceInfo{
        .index = index,
        .uuid = uuid,
        .name = name,
        .total_memory = Bytes(static_cast<int64_t>(memory)),
        .numa = NumaIndex(static_cast<uint64_t>(std::max(numa, 0))),
        // in lower case, as sysfs writes it
        .link = kPciLink + absl::AsciiStrToLower(bus),
        .capability = 10 * major + minor,
        .is_instance = name.find(kInstance) != name.npos};
  }

  absl::StatusOr<ContextScope> Enter(DeviceIndex device) {
    return ContextScope::Enter(library_.get(), contexts_.Of(device));
  }

  // Returns how many bytes at `where` this process's handles hold.
  Bytes Own(Placement where) const {
    Bytes own;
    const MutexLock lock(memory_mutex_);
    for (const auto& [handle, memory] : memories_) {
      if (memory->where() == where) own += memory->size();
    }
    return own;
  }

  absl::StatusOr<Bytes> HeldByOthersOn(Placement where) {
    // Own() is read before and after Usage, so that memory released in between
    // does not count as another process's.
    const Bytes before = Own(where);
    SLUICE_ASSIGN_OR_RETURN(const MemoryUse use, Usage(where));
    return std::max(use.used - std::max(before, Own(where)), Bytes(0));
  }

  Memory Register(MemoryPointer memory) {
    const Memory handle(next_id_++);
    const MutexLock lock(memory_mutex_);
    memories_.emplace(handle, std::move(memory));
    return handle;
  }

  absl::StatusOr<MemoryPointer> Find(Memory memory) const {
    const MutexLock lock(memory_mutex_);
    const auto it = memories_.find(memory);
    if (it != memories_.end()) return it->second;
    return absl::InvalidArgumentError(
        fmt::format("there is no memory {}", memory.value()));
  }

  absl::StatusOr<StreamPointer> MakeStream(DeviceIndex device) {
    SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(device));
    StreamPointer stream = nullptr;
    SLUICE_CUDA(library_, cuStreamCreate,
                fmt::format("on GPU {}", device.value()), &stream,
                kStreamNonBlocking);
    return stream;
  }

  // Returns the stream's entry. Makes a compute stream at its first use.
  absl::StatusOr<StreamEntry> Find(Stream stream) {
    const MutexLock lock(stream_mutex_);
    const auto it = streams_.find(stream);
    if (it != streams_.end()) return it->second;
    if (!IsCompute(stream)) {
      return absl::InvalidArgumentError(
          fmt::format("there is no stream {}", stream.value()));
    }
    const DeviceIndex device = ComputeGpu(stream);
    SLUICE_ASSIGN_OR_RETURN(const StreamPointer made, MakeStream(device));
    return streams_.emplace(stream, StreamEntry{made, device}).first->second;
  }

  absl::StatusOr<EventEntry> Find(Event event) const {
    const MutexLock lock(stream_mutex_);
    const auto it = events_.find(event);
    if (it != events_.end()) return it->second;
    return absl::InvalidArgumentError(
        fmt::format("there is no event {}", event.value()));
  }

  Event NewEvent(bool timed) {
    const Event handle(next_id_++);
    const MutexLock lock(stream_mutex_);
    events_.emplace(handle, EventEntry{.timed = timed});
    return handle;
  }

  // Returns the event in the context of `device`, which must be current; makes
  // the event if needed.
  absl::StatusOr<EventPointer> EventOn(Event event, DeviceIndex device) {
    const MutexLock lock(stream_mutex_);
    const auto it = events_.find(event);
    if (it == events_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("there is no event {}", event.value()));
    }
    EventEntry& entry = it->second;
    if (entry.event != nullptr && entry.device == device) return entry.event;
    if (entry.event != nullptr) {
      SLUICE_CUDA(library_, cuEventDestroy_v2, "",
                  std::exchange(entry.event, nullptr));
    }
    SLUICE_CUDA(library_, cuEventCreate,
                fmt::format("on GPU {}", device.value()), &entry.event,
                entry.timed ? kEventDefault : kEventDisableTiming);
    entry.device = device;
    return entry.event;
  }

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

}  // namespace
}  // namespace sluice::device::cuda

namespace sluice::device {

absl::StatusOr<std::unique_ptr<Driver>> OpenCudaDriver(HostMemoryChoice host) {
  SLUICE_ASSIGN_OR_RETURN(auto library,
                          cuda::LoadedLibrary::Load("libcuda.so.1"));
  return cuda::CudaDriver::Start(std::move(library), host);
}

}  // namespace sluice::device
