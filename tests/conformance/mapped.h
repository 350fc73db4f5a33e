// Mapped memory that tests fill and read in the same way on every driver:
// through copies, because the CPU may not touch a GPU's memory.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/driver.h"

namespace sluice::device {

using Content = std::vector<std::byte>;

// Returns `size` bytes that depend on their position and on `seed`.
Content Pattern(Bytes size, int seed);

// One piece of physical memory, mapped with access from the GPU that has it, or
// from GPU 0 for host memory. The destructor unmaps and releases the memory.
class Mapped {
 public:
  // Maps `memory` and takes ownership of it.
  static absl::StatusOr<std::unique_ptr<Mapped>> Map(Driver* driver,
                                                     Memory memory,
                                                     Placement where,
                                                     Bytes size);
  static absl::StatusOr<std::unique_ptr<Mapped>> Create(Driver* driver,
                                                        Placement where,
                                                        Bytes size);
  ~Mapped();
  Mapped(const Mapped&) = delete;

  Memory memory() const { return memory_; }
  Address address() const { return address_; }
  Bytes size() const { return size_; }

  absl::Status Write(const Content& content);
  absl::StatusOr<Content> Read();

 private:
  Mapped(Driver* driver, Memory memory, Address address, Bytes size,
         DeviceIndex gpu)
      : driver_(driver),
        memory_(memory),
        address_(address),
        size_(size),
        gpu_(gpu) {}

  Driver* const driver_;
  const Memory memory_;
  const Address address_;
  const Bytes size_;
  const DeviceIndex gpu_;
};

// Copies on a new stream and waits until the copy is done.
absl::Status CopyNow(Driver& driver, std::byte* to, const std::byte* from,
                     Bytes size, CopyDirection direction,
                     DeviceIndex gpu = DeviceIndex(0));

}  // namespace sluice::device
