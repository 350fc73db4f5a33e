// Devices, memory and modules; streams and events are in cuda_streams.cc.
#include "kernels/device/cuda/cuda_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "proto/base/cgroup.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::device::cuda {
namespace {

// What CUDA calls an instance of a GPU (MIG): "NVIDIA A100 MIG 3g.20gb". No
// attribute tells it.
constexpr char kInstance[] = " MIG ";

absl::StatusOr<std::string> NameOf(const LoadedLibrary* library, Device device,
                                   const std::string& remark) {
  char name[256] = {};
  SLUICE_CUDA(library, cuDeviceGetName, remark, name, sizeof(name), device);
  return name;
}

// The form of nvidia-smi -L: GPU-8-4-4-4-12, or MIG-8-4-4-4-12 of an instance.
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

// "0000:3b:00.0": as sysfs names it, where drivers may write "3B".
std::string BusText(std::string bus) {
  for (char& c : bus) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }
  return bus;
}

MemoryUse HostUsage() {
  const auto memory = MachineMemory::Read();
  return {.total = memory.total, .used = memory.total - memory.available};
}

// Each fault ends with ": " and the command that mends it.
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
                 "GPU {} is not for several processes (compute mode {}), and "
                 "sluiced has a context beside each rank's: sudo nvidia-smi -i "
                 "{} -c 0",
                 index, mode, uuid))};
}

absl::Status Lost(int index, const absl::Status& why) {
  return absl::UnavailableError(fmt::format(
      "GPU {} does not answer ({}); a reset or a reboot may mend it: "
      "nvidia-smi -q",
      index, std::string(why.message())));
}

// CUDA_VISIBLE_DEVICES, where it is why GPUs are not seen.
std::string HiddenBy() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return "";
  return fmt::format(
      ", and CUDA_VISIBLE_DEVICES is '{}', which hides all from the first on "
      "that is not there: nvidia-smi -L",
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

// An initialisation that fails means: no GPU for us, whatever the code.
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

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> CudaDriver::Start(
    std::unique_ptr<LoadedLibrary> library, HostMemoryChoice host) {
  SLUICE_RETURN_IF_ERROR(Initialise(library.get()));
  SLUICE_ASSIGN_OR_RETURN(auto gpus, FindGpus(library.get()));
  return std::unique_ptr<Driver>(
      new CudaDriver(std::move(library), std::move(gpus), host));
}

CudaDriver::CudaDriver(std::unique_ptr<LoadedLibrary> library,
                       std::vector<Gpu> gpus, HostMemoryChoice host)
    : library_(std::move(library)),
      contexts_(library_.get(), std::move(gpus)),
      maker_(library_.get(), &contexts_, host),
      addresses_(library_.get(), &contexts_, &maker_) {}

CudaDriver::~CudaDriver() {
  const MutexLock lock(stream_mutex_);
  const Functions& f = library_->functions();
  // An adopted stream belongs to its maker, which destroys it.
  for (const auto& [id, entry] : streams_) {
    if (entry.adopted) continue;
    const auto scope = Enter(entry.device);
    if (!scope.ok()) continue;  // its context takes it along
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

absl::StatusOr<ContextScope> CudaDriver::Enter(DeviceIndex device) {
  return ContextScope::Enter(library_.get(), contexts_.Of(device));
}

// --- devices ---------------------------------------------------------------

absl::StatusOr<DeviceInfo> CudaDriver::Describe(DeviceIndex index) const {
  SLUICE_ASSIGN_OR_RETURN(const Device device, contexts_.DeviceOf(index));
  const std::string remark = fmt::format("of GPU {}", index.value());
  SLUICE_ASSIGN_OR_RETURN(const std::string uuid,
                          UuidOf(library_.get(), device, remark));
  SLUICE_ASSIGN_OR_RETURN(const std::string name,
                          NameOf(library_.get(), device, remark));
  char bus[32] = {};
  SLUICE_CUDA(library_, cuDeviceGetPCIBusId, remark, bus, sizeof(bus), device);
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
  return DeviceInfo{.index = index,
                    .uuid = uuid,
                    .name = name,
                    .total_memory = Bytes(static_cast<int64_t>(memory)),
                    .numa = NumaIndex(static_cast<uint64_t>(std::max(numa, 0))),
                    .link = kPciLink + BusText(bus),
                    .capability = 10 * major + minor,
                    .is_instance = name.find(kInstance) != name.npos};
}

absl::StatusOr<std::vector<DeviceInfo>> CudaDriver::Devices() {
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

// --- physical memory -------------------------------------------------------

absl::StatusOr<Bytes> CudaDriver::Granularity(Placement where) {
  return maker_.Granularity(where);
}

absl::StatusOr<MemoryUse> CudaDriver::Usage(Placement where) {
  SLUICE_RETURN_IF_ERROR(maker_.CheckPlacement(where));
  if (where.kind == Placement::Kind::kHost) return HostUsage();
  SLUICE_ASSIGN_OR_RETURN(const auto scope, Enter(DeviceIndex(where.ordinal)));
  size_t free = 0, total = 0;
  SLUICE_CUDA(library_, cuMemGetInfo_v2,
              fmt::format("of GPU {}", where.ordinal), &free, &total);
  return MemoryUse{Bytes(static_cast<int64_t>(total)),
                   Bytes(static_cast<int64_t>(total - free))};
}

Bytes CudaDriver::Own(Placement where) const {
  Bytes own;
  const MutexLock lock(memory_mutex_);
  for (const auto& [handle, memory] : memories_) {
    if (memory->where() == where) own += memory->size();
  }
  return own;
}

absl::StatusOr<Bytes> CudaDriver::HeldByOthersOn(Placement where) {
  // What is released in between is no outsider's.
  const Bytes before = Own(where);
  SLUICE_ASSIGN_OR_RETURN(const MemoryUse use, Usage(where));
  return std::max(use.used - std::max(before, Own(where)), Bytes(0));
}

absl::StatusOr<std::map<Placement, Bytes>> CudaDriver::HeldOutside() {
  std::map<Placement, Bytes> held;
  for (size_t i = 0; i < contexts_.gpus().size(); ++i) {
    const Placement where = Placement::Gpu(DeviceIndex(i));
    // A lost GPU does not hide what is held of the others.
    const auto on_gpu = HeldByOthersOn(where);
    if (on_gpu.ok()) held[where] = *on_gpu;
  }
  return held;
}

Memory CudaDriver::Register(MemoryPointer memory) {
  const Memory handle(next_id_++);
  const MutexLock lock(memory_mutex_);
  memories_.emplace(handle, std::move(memory));
  return handle;
}

absl::StatusOr<MemoryPointer> CudaDriver::Find(Memory memory) const {
  const MutexLock lock(memory_mutex_);
  const auto it = memories_.find(memory);
  if (it != memories_.end()) return it->second;
  return absl::InvalidArgumentError(
      fmt::format("there is no memory {}", memory.value()));
}

absl::StatusOr<Memory> CudaDriver::Create(Placement where, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(auto memory, maker_.Create(where, size));
  return Register(std::move(memory));
}

absl::StatusOr<UniqueFd> CudaDriver::Export(Memory memory) {
  SLUICE_ASSIGN_OR_RETURN(const auto physical, Find(memory));
  return maker_.Export(*physical);
}

absl::StatusOr<Memory> CudaDriver::Import(const UniqueFd& fd, Placement where,
                                          Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(auto memory, maker_.Import(fd, where, size));
  return Register(std::move(memory));
}

// An exported descriptor keeps the memory alive after the process that made it.
absl::StatusOr<UniqueFd> CudaDriver::Keep(Memory memory) {
  return Export(memory);
}

absl::StatusOr<Memory> CudaDriver::Adopt(UniqueFd kept, Placement where,
                                         Bytes size) {
  return Import(kept, where, size);
}

absl::Status CudaDriver::Release(Memory memory) {
  const MutexLock lock(memory_mutex_);
  if (memories_.erase(memory) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("there is no memory {}", memory.value()));
}

// --- virtual memory --------------------------------------------------------

absl::StatusOr<Address> CudaDriver::Reserve(Bytes size, Placement::Kind kind) {
  if (size.count() <= 0) {
    return absl::InvalidArgumentError("Reserve of an empty range");
  }
  const MutexLock lock(memory_mutex_);
  return addresses_.Reserve(size, kind);
}

absl::Status CudaDriver::FreeReservation(Address address, Bytes size) {
  const MutexLock lock(memory_mutex_);
  return addresses_.Free(address, size);
}

absl::Status CudaDriver::Map(Address address, Bytes size, Memory memory) {
  SLUICE_ASSIGN_OR_RETURN(auto physical, Find(memory));
  const MutexLock lock(memory_mutex_);
  return addresses_.Map(address, size, std::move(physical));
}

absl::Status CudaDriver::Unmap(Address address, Bytes size) {
  const MutexLock lock(memory_mutex_);
  return addresses_.Unmap(address, size);
}

absl::Status CudaDriver::SetAccess(Address address, Bytes size,
                                   DeviceIndex device) {
  const MutexLock lock(memory_mutex_);
  return addresses_.Allow(address, size, device);
}

absl::Status CudaDriver::HostRegister(Address address, Bytes size) {
  const MutexLock lock(memory_mutex_);
  return addresses_.Pin(address, size, std::nullopt);
}

absl::Status CudaDriver::HostUnregister(Address address) {
  const MutexLock lock(memory_mutex_);
  return addresses_.Unpin(address);
}

// --- kernels ---------------------------------------------------------------

absl::StatusOr<Module> CudaDriver::LoadModule(
    std::span<const std::byte> fatbin) {
  Library library = nullptr;
  SLUICE_CUDA(library_, cuLibraryLoadData,
              fmt::format("of {} bytes", fatbin.size()), &library,
              fatbin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  const Module handle(next_id_++);
  const MutexLock lock(stream_mutex_);
  modules_.emplace(handle, library);
  return handle;
}

absl::StatusOr<Function> CudaDriver::GetFunction(Module module,
                                                 const std::string& name) {
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

CallCounters CudaDriver::counters() const {
  return {.stream_synchronize = stream_synchronize_,
          .event_synchronize = event_synchronize_,
          .copies = copies_,
          .copied_h2d = Bytes(copied_[0]),
          .copied_d2h = Bytes(copied_[1])};
}

}  // namespace sluice::device::cuda

namespace sluice::device {

absl::StatusOr<std::unique_ptr<Driver>> OpenCudaDriver(HostMemoryChoice host) {
  SLUICE_ASSIGN_OR_RETURN(auto library,
                          cuda::LoadedLibrary::Load("libcuda.so.1"));
  return cuda::CudaDriver::Start(std::move(library), host);
}

}  // namespace sluice::device
