// Reserved addresses on cuda, what is mapped there, and what is pinned.
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

// Reservations and mappings of the driver. Thread safety: none; it locks.
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
  // REQUIRES: nothing uses the range, nor, where it is part of what one Allow
  // pinned, the rest of that: all of it is unpinned, and the rest pinned again.
  absl::Status Unmap(Address address, Bytes size);
  // Host memory of ours is pinned as one range a call: a copy may cross the
  // mappings of one call, and not those of two.
  absl::Status Allow(Address address, Bytes size, DeviceIndex device);

  // Pins memory for all contexts, by that of `device`, or by any.
  absl::Status Pin(Address address, Bytes size,
                   std::optional<DeviceIndex> device);
  absl::Status Unpin(Address address);

 private:
  using Book = AddressBook<PhysicalMemory>;

  // Whether ranges of this kind are mmapped by us and not by the driver.
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
  // Unpins what has a byte in the range; says what that was.
  absl::Status UnpinWithin(Address address, Bytes size, Pins& unpinned);
  // Pins again what of `pins` lies outside the range.
  absl::Status PinOutside(const Pins& pins, Address address, Bytes size);

  const LoadedLibrary* const library_;
  Contexts* const contexts_;
  const MemoryMaker* const maker_;
  Book book_;
  Pins pins_;
};

}  // namespace sluice::device::cuda
