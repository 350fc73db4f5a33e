#include "kernels/device/cuda/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::device::cuda {
namespace {

constexpr Bytes kMemfdGranularity = MiB(2);

DevicePointer ToDevice(const std::byte* address) {
  return reinterpret_cast<DevicePointer>(address);
}

std::string Describe(Placement where, Bytes size) {
  return fmt::format("of {} on {} {}", FormatBytes(size),
                     where.kind == Placement::Kind::kGpu ? "GPU" : "NUMA node",
                     where.ordinal);
}

bool NumaNodeExists(uint64_t node) {
  const std::string path = fmt::format("/sys/devices/system/node/node{}", node);
  return node == 0 || access(path.c_str(), F_OK) == 0;
}

// Pages that this thread takes come from one NUMA node.
class NumaBinding {
 public:
  explicit NumaBinding(uint64_t node) {
    const unsigned long nodes = 1ul << node;
    syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes));
  }
  ~NumaBinding() { syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0); }
  NumaBinding(const NumaBinding&) = delete;
  NumaBinding& operator=(const NumaBinding&) = delete;
};

bool IsMemfd(const UniqueFd& fd) { return fcntl(fd.get(), F_GET_SEALS) >= 0; }

}  // namespace

PhysicalMemory::~PhysicalMemory() {
  if (library_ != nullptr) library_->functions().cuMemRelease(handle_);
}

// --- making ----------------------------------------------------------------

MemoryMaker::MemoryMaker(const LoadedLibrary* library, const Contexts* contexts)
    : library_(library), contexts_(contexts) {
  driver_pins_host_ = ProbeHost().ok();
}

absl::Status MemoryMaker::ProbeHost() const {
  int supported = 0;
  SLUICE_CUDA(library_, cuDeviceGetAttribute, "of HOST_NUMA", &supported,
              kAttributeHostNumaVirtualMemory, contexts_->devices().front());
  if (supported == 0) return absl::UnimplementedError("no HOST_NUMA memory");
  const AllocationProperties properties =
      Properties(Placement::Host(NumaIndex(0)));
  size_t granularity = 0;
  SLUICE_CUDA(library_, cuMemGetAllocationGranularity, "of HOST_NUMA",
              &granularity, &properties, kGranularityMinimum);
  MemoryHandle handle = 0;
  SLUICE_CUDA(library_, cuMemCreate, "of HOST_NUMA", &handle, granularity,
              &properties, 0);
  const PhysicalMemory memory(library_, handle, Placement::Host(NumaIndex(0)),
                              Bytes(static_cast<int64_t>(granularity)));
  return Export(memory).status();
}

AllocationProperties MemoryMaker::Properties(Placement where) const {
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location =
      where.kind == Placement::Kind::kGpu
          ? Location{kLocationDevice, contexts_->devices()[where.ordinal]}
          : Location{kLocationHostNuma, static_cast<int>(where.ordinal)};
  return properties;
}

absl::Status MemoryMaker::CheckPlacement(Placement where) const {
  if (where.kind == Placement::Kind::kHost) {
    if (NumaNodeExists(where.ordinal)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("there is no NUMA node {}", where.ordinal));
  }
  if (where.ordinal < contexts_->devices().size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("there is no GPU {}; the node has {}", where.ordinal,
                  contexts_->devices().size()));
}

absl::StatusOr<Bytes> MemoryMaker::Granularity(Placement where) const {
  SLUICE_RETURN_IF_ERROR(CheckPlacement(where));
  if (UsesMemfd(where)) return kMemfdGranularity;
  const AllocationProperties properties = Properties(where);
  size_t granularity = 0;
  SLUICE_CUDA(library_, cuMemGetAllocationGranularity,
              Describe(where, Bytes(0)), &granularity, &properties,
              kGranularityMinimum);
  return Bytes(static_cast<int64_t>(granularity));
}

absl::Status MemoryMaker::CheckSize(Placement where, Bytes size) const {
  SLUICE_ASSIGN_OR_RETURN(const Bytes granularity, Granularity(where));
  if (size.count() > 0 && size.count() % granularity.count() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("size {} must be a positive multiple of the granularity, {}",
                  FormatBytes(size), FormatBytes(granularity)));
}

absl::StatusOr<MemoryPointer> MemoryMaker::Create(Placement where,
                                                  Bytes size) const {
  SLUICE_RETURN_IF_ERROR(CheckSize(where, size));
  if (UsesMemfd(where)) return CreateMemfd(where, size);
  const AllocationProperties properties = Properties(where);
  MemoryHandle handle = 0;
  SLUICE_RETURN_IF_ERROR(library_->ToStatus(
      library_->functions().cuMemCreate(&handle, size.size(), &properties, 0),
      fmt::format("cuMemCreate {}", Describe(where, size)),
      where.kind == Placement::Kind::kGpu ? Shortage::kGpuMemory
                                          : Shortage::kHostMemory));
  return std::make_shared<PhysicalMemory>(library_, handle, where, size);
}

absl::StatusOr<MemoryPointer> MemoryMaker::CreateMemfd(Placement where,
                                                       Bytes size) const {
  UniqueFd fd(memfd_create("sluice-host", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "memfd_create");
  // Taken now: a page that is missing later would be a SIGBUS in a rank.
  const NumaBinding binding(where.ordinal);
  if (fallocate(fd.get(), 0, 0, size.count()) != 0) {
    // A memfd lies in memory: what is full is no disk.
    return errno == ENOSPC || errno == ENOMEM
               ? ShortOf(Shortage::kHostMemory,
                         "no host memory left " + Describe(where, size))
               : ErrnoStatus(errno, "host memory " + Describe(where, size));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0) {
    return ErrnoStatus(errno, "seal host memory");
  }
  return std::make_shared<PhysicalMemory>(std::move(fd), where, size);
}

absl::StatusOr<UniqueFd> MemoryMaker::Export(
    const PhysicalMemory& memory) const {
  if (memory.is_memfd()) return memory.memfd().Duplicate();
  int fd = -1;
  SLUICE_CUDA(library_, cuMemExportToShareableHandle,
              Describe(memory.where(), memory.size()), &fd, memory.handle(),
              kHandlePosixFd, 0);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

absl::StatusOr<MemoryPointer> MemoryMaker::Import(const UniqueFd& fd,
                                                  Placement where,
                                                  Bytes size) const {
  SLUICE_RETURN_IF_ERROR(CheckSize(where, size));
  if (!fd) return absl::InvalidArgumentError("Import of no descriptor");
  if (IsMemfd(fd) != UsesMemfd(where)) {
    return absl::InvalidArgumentError("this descriptor is no memory " +
                                      Describe(where, size));
  }
  if (UsesMemfd(where)) {
    struct stat status;
    if (fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, "stat memory");
    if (status.st_size != size.count()) {
      return absl::InvalidArgumentError(
          fmt::format("this memory has {}, not {}",
                      FormatBytes(Bytes(status.st_size)), FormatBytes(size)));
    }
    SLUICE_ASSIGN_OR_RETURN(UniqueFd own, fd.Duplicate());
    return std::make_shared<PhysicalMemory>(std::move(own), where, size);
  }
  MemoryHandle handle = 0;
  SLUICE_CUDA(library_, cuMemImportFromShareableHandle, Describe(where, size),
              &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
              kHandlePosixFd);
  return std::make_shared<PhysicalMemory>(library_, handle, where, size);
}

// --- mapping ---------------------------------------------------------------

AddressSpace::~AddressSpace() {
  for (const auto& tile : book_.mappings()) UnmapOne(tile).IgnoreError();
  for (const auto& [address, reservation] : book_.reservations()) {
    Release(address, reservation).IgnoreError();
  }
}

absl::StatusOr<Address> AddressSpace::Reserve(Bytes size,
                                              Placement::Kind kind) {
  Address address = nullptr;
  if (IsOurs(kind)) {
    void* const range =
        mmap(nullptr, size.size(), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      return ErrnoStatus(errno, "reserve " + FormatBytes(size));
    }
    address = static_cast<Address>(range);
  } else {
    DevicePointer range = 0;
    SLUICE_CUDA(library_, cuMemAddressReserve, "of " + FormatBytes(size),
                &range, size.size(), 0, 0, 0);
    address = reinterpret_cast<Address>(range);
  }
  book_.AddReservation(address, {size, kind});
  return address;
}

absl::Status AddressSpace::Release(Address address,
                                   const Book::Reservation& reservation) {
  if (IsOurs(reservation.kind)) {
    munmap(address, reservation.size.size());
    return absl::OkStatus();
  }
  SLUICE_CUDA(library_, cuMemAddressFree, RangeName(address, reservation.size),
              ToDevice(address), reservation.size.size());
  return absl::OkStatus();
}

absl::Status AddressSpace::Free(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto reservation,
                          book_.Freeable(address, size));
  SLUICE_RETURN_IF_ERROR(Release(address, reservation));
  book_.DropReservation(address);
  return absl::OkStatus();
}

absl::Status AddressSpace::Map(Address address, Bytes size,
                               MemoryPointer memory) {
  SLUICE_RETURN_IF_ERROR(book_.CheckMappable(address, size, *memory));
  if (memory->is_memfd()) {
    if (mmap(address, size.size(), PROT_NONE, MAP_SHARED | MAP_FIXED,
             memory->memfd().get(), 0) == MAP_FAILED) {
      return ErrnoStatus(errno, "map " + RangeName(address, size));
    }
    madvise(address, size.size(), MADV_DONTFORK);
    madvise(address, size.size(), MADV_DONTDUMP);
  } else {
    SLUICE_CUDA(library_, cuMemMap, RangeName(address, size), ToDevice(address),
                size.size(), 0, memory->handle(), 0);
  }
  book_.AddMapping(address, std::move(memory));
  return absl::OkStatus();
}

absl::Status AddressSpace::UnmapOne(const Book::Tile& tile) {
  const auto& [address, mapping] = tile;
  const size_t size = mapping.size.size();
  if (!mapping.memory->is_memfd()) {
    SLUICE_CUDA(library_, cuMemUnmap, RangeName(address, mapping.size),
                ToDevice(address), size);
    return absl::OkStatus();
  }
  if (mapping.access) {
    SLUICE_ASSIGN_OR_RETURN(const auto scope,
                            ContextScope::Enter(library_, contexts_->Any()));
    SLUICE_CUDA(library_, cuMemHostUnregister, RangeName(address, mapping.size),
                address);
  }
  if (mmap(address, size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    return ErrnoStatus(errno, "unmap " + RangeName(address, mapping.size));
  }
  return absl::OkStatus();
}

absl::Status AddressSpace::Unmap(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
  for (const auto* tile : tiles) {
    SLUICE_RETURN_IF_ERROR(UnmapOne(*tile));
    book_.DropMapping(Address(tile->first));
  }
  return absl::OkStatus();
}

absl::Status AddressSpace::AllowOurs(Book::Tile& tile) {
  auto& [address, mapping] = tile;
  if (mapping.access) return absl::OkStatus();
  if (mprotect(address, mapping.size.size(), PROT_READ | PROT_WRITE) != 0) {
    return ErrnoStatus(errno, "allow " + RangeName(address, mapping.size));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto scope,
                          ContextScope::Enter(library_, contexts_->Any()));
  SLUICE_RETURN_IF_ERROR(library_->ToStatus(
      library_->functions().cuMemHostRegister_v2(address, mapping.size.size(),
                                                 kHostRegisterPortable),
      "cuMemHostRegister_v2 " + RangeName(address, mapping.size),
      Shortage::kHostMemory));
  mapping.access = true;
  return absl::OkStatus();
}

absl::Status AddressSpace::Allow(Address address, Bytes size,
                                 DeviceIndex device) {
  SLUICE_RETURN_IF_ERROR(maker_->CheckPlacement(Placement::Gpu(device)));
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
  if (tiles.front()->second.memory->is_memfd()) {
    for (auto* tile : tiles) SLUICE_RETURN_IF_ERROR(AllowOurs(*tile));
    return absl::OkStatus();
  }
  const Placement where = tiles.front()->second.memory->where();
  std::array<AccessDescription, 2> access = {
      {{{kLocationDevice, contexts_->devices()[device.value()]},
        kAccessReadWrite},
       {{kLocationHostNuma, static_cast<int>(where.ordinal)},
        kAccessReadWrite}}};
  const size_t count = where.kind == Placement::Kind::kHost ? 2 : 1;
  SLUICE_CUDA(library_, cuMemSetAccess, RangeName(address, size),
              ToDevice(address), size.size(), access.data(), count);
  for (auto* tile : tiles) tile->second.access = true;
  return absl::OkStatus();
}

}  // namespace sluice::device::cuda
