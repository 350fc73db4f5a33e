// Physical memory on cuda, of three kinds:
//   GPU memory             cuMemCreate, exported by descriptor
//   pinned by the driver   cuMemCreate on a HOST_NUMA place, exported likewise
//   pinned by us           memfd, which every process that maps it pins with
//                          cuMemHostRegister; used if the driver cannot pin,
//                          or if the configuration says so
// Unless the configuration chooses, MemoryMaker probes which kind of host
// memory works, by making and exporting a piece. Importing the other kind fails
// with the reason why this process does not use it.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/address_book.h"
#include "kernels/device/cuda/contexts.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/driver.h"
#include "proto/base/unique_fd.h"

namespace sluice::device::cuda {

enum class Origin { kMadeHere, kImported };

// This process's hold on a piece of memory, shared by the handle and each
// mapping. Immutable.
class PhysicalMemory {
 public:
  PhysicalMemory(const LoadedLibrary* library, MemoryHandle handle,
                 Origin origin, Placement where, Bytes size)
      : library_(library),
        handle_(handle),
        origin_(origin),
        where_(where),
        size_(size) {}
  PhysicalMemory(UniqueFd memfd, Origin origin, Placement where, Bytes size)
      : memfd_(std::move(memfd)), origin_(origin), where_(where), size_(size) {}
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  Placement where() const { return where_; }
  Bytes size() const { return size_; }
  bool is_memfd() const { return static_cast<bool>(memfd_); }
  const UniqueFd& memfd() const { return memfd_; }
  MemoryHandle handle() const { return handle_; }
  Origin origin() const { return origin_; }

 private:
  const LoadedLibrary* library_ = nullptr;
  MemoryHandle handle_ = 0;
  UniqueFd memfd_;
  Origin origin_;
  Placement where_;
  Bytes size_;
};

using MemoryPointer = std::shared_ptr<PhysicalMemory>;

// Makes, exports and imports memory. Thread safety: thread-safe.
class MemoryMaker {
 public:
  // kAuto: probes once whether the driver makes and exports pinned memory.
  MemoryMaker(const LoadedLibrary* library, const Contexts* contexts,
              HostMemoryChoice host);

  bool driver_pins_host() const { return host_.ok(); }
  HostMemoryKind HostMemory() const;
  // Returns a power of two that suits mappings of every place of this kind.
  absl::StatusOr<Bytes> Alignment(Placement::Kind kind) const;
  absl::Status CheckPlacement(Placement where) const;
  absl::StatusOr<Bytes> Granularity(Placement where) const;
  absl::Status CheckSize(Placement where, Bytes size) const;
  absl::StatusOr<MemoryPointer> Create(Placement where, Bytes size) const;
  // Refuses imported memory, because the driver answers INVALID_VALUE (measured
  // on an H100, 580.159.04). An imported memfd is refused for consistency.
  absl::StatusOr<UniqueFd> Export(const PhysicalMemory& memory) const;
  absl::StatusOr<MemoryPointer> Import(const UniqueFd& fd, Placement where,
                                       Bytes size) const;

 private:
  AllocationProperties Properties(Placement where) const;
  absl::Status ProbeHost() const;
  bool UsesMemfd(Placement where) const {
    return where.kind == Placement::Kind::kHost && !driver_pins_host();
  }
  absl::Status CheckKind(const UniqueFd& fd, Placement where, Bytes size) const;
  absl::Status CheckMemfd(const UniqueFd& fd, Bytes size) const;
  // Checks the place that the driver reports, except a GPU's number.
  absl::Status CheckPlace(MemoryHandle handle, Placement where,
                          Bytes size) const;
  absl::StatusOr<MemoryPointer> CreateMemfd(Placement where, Bytes size) const;

  const LoadedLibrary* const library_;
  const Contexts* const contexts_;
  // OK if the driver makes host memory here, else the reason why not.
  absl::Status host_;
  std::vector<bool> rdma_;  // for each GPU: network cards can access its memory
};

}  // namespace sluice::device::cuda
