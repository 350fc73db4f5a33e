// Maps the extents of a region side by side as one range. Internal to client.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
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
  // Maps every extent for `device` (and the CPU, where it can) to read and
  // write. A forked child does not inherit the range. After an error nothing is
  // mapped. `driver` outlives the mapping. REQUIRES: at least one extent, and
  // all of one kind.
  static absl::StatusOr<std::unique_ptr<Mapping>> Make(
      device::Driver* driver, DeviceIndex device,
      const std::vector<Extent>& extents);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return base_; }
  Bytes size() const { return size_; }

 private:
  Mapping(device::Driver* driver, std::byte* base, Bytes size)
      : driver_(driver), base_(base), size_(size) {}
  absl::Status MapExtent(const Extent& extent);

  device::Driver* const driver_;
  std::byte* const base_;
  const Bytes size_;
  Bytes mapped_;  // mapped bytes, from base_ on
};

}  // namespace sluice::client
