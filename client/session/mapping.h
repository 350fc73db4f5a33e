// Maps the extents of a region side by side as one range. Internal to client.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::client {

struct Extent {
  UniqueFd fd;
  Bytes size;
  device::Placement where;
};

// Unmaps on destruction. Thread safety: one owner.
class Mapping {
 public:
  // Maps every extent for `device` (and, if possible, the CPU) to read and
  // write. A forked child does not inherit the range. After an error nothing is
  // mapped. `driver` outlives the mapping. REQUIRES: at least one extent, and
  // all of one kind.
  static absl::StatusOr<std::unique_ptr<Mapping>> Make(
      device::Driver* driver, DeviceIndex device,
      const std::vector<Extent>& extents) {
    Bytes size;
    for (const Extent& extent : extents) size += extent.size;
    SLUICE_ASSIGN_OR_RETURN(std::byte* const base,
                            driver->Reserve(size, extents.front().where.kind));
    std::unique_ptr<Mapping> mapping(new Mapping(driver, base, size));
    for (const Extent& extent : extents) {
      SLUICE_RETURN_IF_ERROR(mapping->MapExtent(extent));
    }
    SLUICE_RETURN_IF_ERROR(driver->SetAccess(base, size, device));
    // A forked child would keep the memory alive. The kernel may refuse
    // MADV_DONTFORK for memory of a real GPU, which a fork cannot copy anyway.
    madvise(base, size.size(), MADV_DONTFORK);
    // A core dump would write gigabytes of activations to a disk.
    madvise(base, size.size(), MADV_DONTDUMP);
    return mapping;
  }
  ~Mapping() {
    // Unmaps in one call, because unmapping one extent would pin the remaining
    // extents again. On a lost device the calls fail, and the memory is gone
    // anyway.
    if (mapped_ > Bytes(0)) driver_->Unmap(base_, mapped_).IgnoreError();
    driver_->FreeReservation(base_, size_).IgnoreError();
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return base_; }
  Bytes size() const { return size_; }

 private:
  Mapping(device::Driver* driver, std::byte* base, Bytes size)
      : driver_(driver), base_(base), size_(size) {}
  absl::Status MapExtent(const Extent& extent) {
    SLUICE_ASSIGN_OR_RETURN(
        const device::Memory memory,
        driver_->Import(extent.fd, extent.where, extent.size));
    const absl::Status status =
        driver_->Map(base_ + mapped_.count(), extent.size, memory);
    // The mapping keeps the memory alive; the handle is no longer needed.
    const absl::Status released = driver_->Release(memory);
    SLUICE_RETURN_IF_ERROR(status);
    mapped_ += extent.size;
    return released;
  }

  device::Driver* const driver_;
  std::byte* const base_;
  const Bytes size_;
  Bytes mapped_;  // mapped bytes, from base_ on
};

}  // namespace sluice::client
