#include "kernels/device/cuda/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::device::cuda {
namespace {

constexpr Bytes kMemfdGranularity = MiB(2);

std::string Describe(Placement where, Bytes size) {
  return fmt::format("of {} on {} {}", FormatBytes(size),
                     where.kind == Placement::Kind::kGpu ? "GPU" : "NUMA node",
                     where.ordinal);
}

bool NumaNodeExists(uint64_t node) {
  const std::string path = fmt::format("/sys/devices/system/node/node{}", node);
  return node == 0 || access(path.c_str(), F_OK) == 0;
}

// Asks for huge pages. If the mapped file is large, four threads with this
// thread's affinity allocate its pages; more threads are no faster
// (NVIDIA/cudf#23457). The fallocate in CreateMemfd allocates the pages that
// are missing then.
void TakePages(void* range, size_t size) {
  constexpr size_t kThreads = 4, kLeast = size_t{64} << 20;
  madvise(range, size, MADV_HUGEPAGE);
  if (size < kThreads * kLeast) return;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [part = static_cast<char*>(range) + size / kThreads * i,
         bytes = size / kThreads] {
          madvise(part, bytes, MADV_POPULATE_WRITE);
        });
  }
  for (std::thread& thread : threads) thread.join();
}

// Binds the pages of a mapped file to one NUMA node. The thread keeps its own
// policy, which numactl may have set.
absl::Status BindToNode(void* range, Bytes size, uint64_t node) {
  if (node == 0 && !NumaNodeExists(1)) return absl::OkStatus();
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> nodes(node / kBits + 1);
  nodes[node / kBits] = 1ul << node % kBits;
  // mbind expects the number of bits plus one.
  const long bound = syscall(SYS_mbind, range, size.size(), MPOL_BIND,
                             nodes.data(), nodes.size() * kBits + 1, 0);
  if (bound == 0) return absl::OkStatus();
  return ErrnoStatus(
      errno, fmt::format("bind host memory to NUMA node {} (mbind; in a "
                         "container it needs CAP_SYS_NICE)",
                         node));
}

bool IsMemfd(const UniqueFd& fd) { return fcntl(fd.get(), F_GET_SEALS) >= 0; }

}  // namespace

PhysicalMemory::~PhysicalMemory() {
  if (library_ != nullptr) library_->functions().cuMemRelease(handle_);
}

// --- making ----------------------------------------------------------------

MemoryMaker::MemoryMaker(const LoadedLibrary* library, const Contexts* contexts,
                         HostMemoryChoice host)
    : library_(library), contexts_(contexts) {
  for (const Gpu& gpu : contexts_->gpus()) {
    int supported = 0;
    // Only network cards need RDMA, so it stays off if the GPU does not answer.
    if (gpu.fault.ok()) {
      library_->functions().cuDeviceGetAttribute(
          &supported, kAttributeRdmaOfVirtualMemory, gpu.device);
    }
    rdma_.push_back(supported != 0);
  }
  host_ = host == HostMemoryChoice::kMemfd ? absl::UnimplementedError(kToldSo)
                                           : ProbeHost();
}

absl::Status MemoryMaker::ProbeHost() const {
  int supported = 0;
  SLUICE_ASSIGN_OR_RETURN(const Device device,
                          contexts_->DeviceOf(contexts_->first()));
  SLUICE_CUDA(library_, cuDeviceGetAttribute, "of HOST_NUMA", &supported,
              kAttributeHostNumaVirtualMemory, device);
  if (supported == 0) {
    return absl::UnimplementedError("the driver offers no HOST_NUMA memory");
  }
  const AllocationProperties properties =
      Properties(Placement::Host(NumaIndex(0)));
  size_t granularity = 0;
  SLUICE_CUDA(library_, cuMemGetAllocationGranularity, "of HOST_NUMA",
              &granularity, &properties, kGranularityMinimum);
  MemoryHandle handle = 0;
  SLUICE_CUDA(library_, cuMemCreate, "of HOST_NUMA", &handle, granularity,
              &properties, 0);
  const PhysicalMemory memory(library_, handle, Origin::kMadeHere,
                              Placement::Host(NumaIndex(0)),
                              Bytes(static_cast<int64_t>(granularity)));
  return Export(memory).status();
}

HostMemoryKind MemoryMaker::HostMemory() const {
  if (driver_pins_host()) return {.name = "HOST_NUMA", .why = ""};
  return {.name = "memfd", .why = std::string(host_.message())};
}

AllocationProperties MemoryMaker::Properties(Placement where) const {
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location =
      where.kind == Placement::Kind::kGpu
          ? Location{kLocationDevice, contexts_->gpus()[where.ordinal].device}
          : Location{kLocationHostNuma, static_cast<int>(where.ordinal)};
  if (where.kind == Placement::Kind::kGpu &&
      rdma_.at(static_cast<size_t>(where.ordinal))) {
    properties.flags.rdma = 1;
  }
  return properties;
}

absl::Status MemoryMaker::CheckPlacement(Placement where) const {
  if (where.kind == Placement::Kind::kHost) {
    if (NumaNodeExists(where.ordinal)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("there is no NUMA node {}", where.ordinal));
  }
  return contexts_->DeviceOf(DeviceIndex(where.ordinal)).status();
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

absl::StatusOr<Bytes> MemoryMaker::Alignment(Placement::Kind kind) const {
  Bytes alignment;
  const size_t places =
      kind == Placement::Kind::kGpu ? contexts_->gpus().size() : 1;
  for (size_t i = 0; i < places; ++i) {
    const auto granularity = Granularity({kind, i});
    // A lost GPU maps no memory, so it is ignored while there are others.
    if (absl::IsUnavailable(granularity.status()) && places > 1) continue;
    SLUICE_RETURN_IF_ERROR(granularity.status());
    alignment = std::max(alignment, *granularity);
  }
  return alignment;
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
  return std::make_shared<PhysicalMemory>(library_, handle, Origin::kMadeHere,
                                          where, size);
}

absl::StatusOr<MemoryPointer> MemoryMaker::CreateMemfd(Placement where,
                                                       Bytes size) const {
  UniqueFd fd(memfd_create("sluice-host", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "memfd_create");
  // Allocates all pages now, because a page that is missing later would raise
  // SIGBUS in a rank. The seals come last: F_SEAL_GROW forbids ftruncate.
  if (ftruncate(fd.get(), size.count()) != 0) {
    return ErrnoStatus(errno, "size host memory");
  }
  void* const range = mmap(nullptr, size.size(), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (range == MAP_FAILED) return ErrnoStatus(errno, "map host memory");
  const absl::Status bound = BindToNode(range, size, where.ordinal);
  if (bound.ok()) TakePages(range, size.size());
  munmap(range, size.size());
  SLUICE_RETURN_IF_ERROR(bound);
  if (fallocate(fd.get(), 0, 0, size.count()) != 0) {
    // A memfd lies in memory, so ENOSPC does not mean a full disk.
    return errno == ENOSPC || errno == ENOMEM
               ? ShortOf(Shortage::kHostMemory,
                         "no room for host memory " + Describe(where, size))
               : ErrnoStatus(errno, "host memory " + Describe(where, size));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0) {
    return ErrnoStatus(errno, "seal host memory");
  }
  return std::make_shared<PhysicalMemory>(std::move(fd), Origin::kMadeHere,
                                          where, size);
}

absl::StatusOr<UniqueFd> MemoryMaker::Export(
    const PhysicalMemory& memory) const {
  if (memory.origin() == Origin::kImported) {
    return absl::InvalidArgumentError(fmt::format(
        "memory {} was imported, and only the process that made it exports it: "
        "pass on the descriptor that it was imported from",
        Describe(memory.where(), memory.size())));
  }
  if (memory.is_memfd()) return memory.memfd().Duplicate();
  int fd = -1;
  SLUICE_CUDA(library_, cuMemExportToShareableHandle,
              Describe(memory.where(), memory.size()), &fd, memory.handle(),
              kHandlePosixFd, 0);
  // The driver's descriptor lacks close-on-exec, so a child that another thread
  // starts at this moment inherits it.
  UniqueFd exported(fd);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "set close-on-exec of exported memory");
  }
  return exported;
}

// Checks that the descriptor is a memfd exactly if this process uses memfds at
// `where`. The exporter's probe of host memory may have found another kind.
absl::Status MemoryMaker::CheckKind(const UniqueFd& fd, Placement where,
                                    Bytes size) const {
  if (IsMemfd(fd) == UsesMemfd(where)) return absl::OkStatus();
  std::string why = "is no memory " + Describe(where, size);
  if (where.kind == Placement::Kind::kHost) {
    why += IsMemfd(fd)
               ? "; it is a memfd, and here the driver makes host memory"
               : "; here host memory is a memfd, because: " +
                     std::string(host_.message());
  }
  return absl::InvalidArgumentError("this descriptor " + why);
}

absl::Status MemoryMaker::CheckMemfd(const UniqueFd& fd, Bytes size) const {
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, "stat memory");
  if (status.st_size == size.count()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("this memory has {}, not {}",
                  FormatBytes(Bytes(status.st_size)), FormatBytes(size)));
}

absl::Status MemoryMaker::CheckPlace(MemoryHandle handle, Placement where,
                                     Bytes size) const {
  AllocationProperties properties = {};
  SLUICE_CUDA(library_, cuMemGetAllocationPropertiesFromHandle,
              "of an imported descriptor", &properties, handle);
  const Location expected = Properties(where).location;
  // GPU numbers are not compared: CUDA does not document whether they are the
  // exporter's or the importer's, which differ with CUDA_VISIBLE_DEVICES.
  const bool same_number = where.kind == Placement::Kind::kGpu ||
                           properties.location.id == expected.id;
  if (properties.location.type == expected.type && same_number) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "this descriptor is no memory {}: the driver says location type {}, id "
      "{}",
      Describe(where, size), properties.location.type, properties.location.id));
}

absl::StatusOr<MemoryPointer> MemoryMaker::Import(const UniqueFd& fd,
                                                  Placement where,
                                                  Bytes size) const {
  SLUICE_RETURN_IF_ERROR(CheckSize(where, size));
  if (!fd) return absl::InvalidArgumentError("Import of no descriptor");
  SLUICE_RETURN_IF_ERROR(CheckKind(fd, where, size));
  if (UsesMemfd(where)) {
    SLUICE_RETURN_IF_ERROR(CheckMemfd(fd, size));
    SLUICE_ASSIGN_OR_RETURN(UniqueFd own, fd.Duplicate());
    return std::make_shared<PhysicalMemory>(std::move(own), Origin::kImported,
                                            where, size);
  }
  MemoryHandle handle = 0;
  SLUICE_CUDA(library_, cuMemImportFromShareableHandle, Describe(where, size),
              &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
              kHandlePosixFd);
  auto memory = std::make_shared<PhysicalMemory>(
      library_, handle, Origin::kImported, where, size);
  SLUICE_RETURN_IF_ERROR(CheckPlace(handle, where, size));
  return memory;
}

}  // namespace sluice::device::cuda
