#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/address_book.h"
#include "kernels/device/cuda/contexts.h"
#include "kernels/device/cuda/library.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/device/driver.h"

namespace sluice::device::cuda {

// Reserves and maps through the driver. Thread safety: none; the driver locks.
class AddressSpace {
 public:
  AddressSpace(const LoadedLibrary* library, Contexts* contexts,
               const MemoryMaker* maker)
      : library_(library), contexts_(contexts), maker_(maker) {}
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind);
  absl::Status Free(Address address, Bytes size);
  absl::Status Map(Address address, Bytes size, MemoryPointer memory);
  // If one Allow pinned a larger range, unpins the larger range and pins its
  // other parts again. REQUIRES: no copy or kernel uses the larger range.
  absl::Status Unmap(Address address, Bytes size);
  // Makes the range accessible. Pins its mmapped memory as one range, so a copy
  // may cross from mapping to mapping inside the range, but not beyond it.
  absl::Status Allow(Address address, Bytes size, DeviceIndex device);

  // Pins memory for all contexts. Makes the call in the context of `device`, if
  // given, or else in any context.
  absl::Status Pin(Address address, Bytes size,
                   std::optional<DeviceIndex> device);
  absl::Status Unpin(Address address);

 private:
  using Book = AddressBook<PhysicalMemory>;

  // Returns true if we mmap memory of this kind, false if the driver maps it.
  bool IsOurs(Placement::Kind kind) const {
    return kind == Placement::Kind::kHost && !maker_->driver_pins_host();
  }
  absl::Status Release(Address address, const Book::Reservation& reservation);
  struct Pinned {
    Bytes size;
    Context by = nullptr;
  };
  using Pins = std::map<Address, Pinned>;

  absl::Status PinBy(absl::StatusOr<Context> by, Address address, Bytes size);
  absl::Status AllowOurs(const std::vector<Book::Tile*>& tiles,
                         DeviceIndex device);
  absl::Status UnmapOne(const Book::Tile& tile);
  absl::Status UnpinWithin(Address address, Bytes size, Pins& unpinned);
  // Pins again the parts of `pins` that lie outside the given range.
  absl::Status PinOutside(const Pins& pins, Address address, Bytes size);

  const LoadedLibrary* const library_;
  Contexts* const contexts_;
  const MemoryMaker* const maker_;
  Book book_;
  Pins pins_;
};

}  // namespace sluice::device::cuda
