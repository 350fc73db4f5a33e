#include "kernels/device/cuda/address_space.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::device::cuda {
namespace {

DevicePointer ToDevice(const std::byte* address) {
  return reinterpret_cast<DevicePointer>(address);
}

}  // namespace

AddressSpace::~AddressSpace() {
  for (const auto& [address, pinned] : Pins(pins_)) {
    Unpin(address).IgnoreError();
  }
  for (const auto& tile : book_.mappings()) UnmapOne(tile).IgnoreError();
  for (const auto& [address, reservation] : book_.reservations()) {
    Release(address, reservation).IgnoreError();
  }
}

// --- reservations ----------------------------------------------------------

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
    // The default alignment may be too small for memory that is mapped there.
    SLUICE_ASSIGN_OR_RETURN(const Bytes alignment, maker_->Alignment(kind));
    DevicePointer range = 0;
    SLUICE_CUDA(library_, cuMemAddressReserve, "of " + FormatBytes(size),
                &range, size.size(), alignment.size(), 0, 0);
    address = reinterpret_cast<Address>(range);
  }
  book_.AddReservation(address, {size, kind});
  return address;
}

absl::Status AddressSpace::Release(Address address,
                                   const Book::Reservation& reservation) {
  if (IsOurs(reservation.kind)) {
    if (munmap(address, reservation.size.size()) != 0) {
      return ErrnoStatus(errno,
                         "release " + RangeName(address, reservation.size));
    }
    return absl::OkStatus();
  }
  SLUICE_CUDA(library_, cuMemAddressFree, RangeName(address, reservation.size),
              ToDevice(address), reservation.size.size());
  return absl::OkStatus();
}

absl::Status AddressSpace::Free(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto reservation,
                          book_.Freeable(address, size));
  // A failed release is not retried, because its error may belong to an earlier
  // call.
  book_.DropReservation(address);
  return Release(address, reservation);
}

// --- mappings --------------------------------------------------------------

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
  if (mmap(address, size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    return ErrnoStatus(errno, "unmap " + RangeName(address, mapping.size));
  }
  return absl::OkStatus();
}

absl::Status AddressSpace::Unmap(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
  Pins pins;
  absl::Status status = absl::OkStatus();
  if (tiles.front()->second.memory->is_memfd()) {
    status = UnpinWithin(address, size, pins);
  }
  for (const auto* tile : tiles) {
    status.Update(UnmapOne(*tile));
    book_.DropMapping(Address(tile->first));
  }
  status.Update(PinOutside(pins, address, size));
  return status;
}

// --- access ----------------------------------------------------------------

absl::Status AddressSpace::Pin(Address address, Bytes size,
                               std::optional<DeviceIndex> device) {
  return PinBy(device ? contexts_->Of(*device) : contexts_->Any(), address,
               size);
}

absl::Status AddressSpace::PinBy(absl::StatusOr<Context> by, Address address,
                                 Bytes size) {
  const auto next = pins_.lower_bound(address);
  const bool hits_next =
      next != pins_.end() && next->first < address + size.size();
  const bool hits_previous =
      next != pins_.begin() &&
      std::prev(next)->first + std::prev(next)->second.size.size() > address;
  if (size.count() <= 0 || hits_next || hits_previous) {
    return absl::InvalidArgumentError(
        RangeName(address, size) +
        (size.count() <= 0 ? " is empty" : " is pinned already"));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto scope, ContextScope::Enter(library_, by));
  SLUICE_RETURN_IF_ERROR(
      library_->ToStatus(library_->functions().cuMemHostRegister_v2(
                             address, size.size(), kHostRegisterPortable),
                         "cuMemHostRegister_v2 " + RangeName(address, size),
                         Shortage::kHostMemory));
  pins_.emplace(address, Pinned{size, *by});
  return absl::OkStatus();
}

absl::Status AddressSpace::Unpin(Address address) {
  const auto it = pins_.find(address);
  if (it == pins_.end()) {
    return absl::InvalidArgumentError(fmt::format(
        "nothing is pinned at {}", static_cast<const void*>(address)));
  }
  const Pinned pinned = it->second;
  // Enter comes first: if it fails, the memory is still pinned and recorded.
  SLUICE_ASSIGN_OR_RETURN(const auto scope,
                          ContextScope::Enter(library_, pinned.by));
  pins_.erase(it);
  SLUICE_CUDA(library_, cuMemHostUnregister, RangeName(address, pinned.size),
              address);
  return absl::OkStatus();
}

absl::Status AddressSpace::UnpinWithin(Address address, Bytes size,
                                       Pins& unpinned) {
  for (const auto& [start, pinned] : pins_) {
    if (start < address + size.size() && start + pinned.size.size() > address) {
      unpinned.emplace(start, pinned);
    }
  }
  absl::Status status = absl::OkStatus();
  for (const auto& [start, pinned] : unpinned) status.Update(Unpin(start));
  return status;
}

absl::Status AddressSpace::PinOutside(const Pins& pins, Address address,
                                      Bytes size) {
  absl::Status status = absl::OkStatus();
  for (const auto& [start, pinned] : pins) {
    const Address end = start + pinned.size.size();
    if (start < address) {
      status.Update(PinBy(pinned.by, start, Bytes(address - start)));
    }
    if (end > address + size.size()) {
      status.Update(PinBy(pinned.by, address + size.size(),
                          Bytes(end - address - size.count())));
    }
  }
  return status;
}

// Gives access to mappings that lack it. Pins adjacent ones as one range.
absl::Status AddressSpace::AllowOurs(const std::vector<Book::Tile*>& tiles,
                                     DeviceIndex device) {
  const auto has_access = [](const Book::Tile* tile) {
    return tile->second.access;
  };
  auto run = std::find_if_not(tiles.begin(), tiles.end(), has_access);
  while (run != tiles.end()) {
    const auto end = std::find_if(run, tiles.end(), has_access);
    const Address address = (*run)->first;
    const Bytes size(
        std::accumulate(run, end, int64_t{0}, [](int64_t sum, const auto* t) {
          return sum + t->second.size.count();
        }));
    if (mprotect(address, size.size(), PROT_READ | PROT_WRITE) != 0) {
      return ErrnoStatus(errno, "allow " + RangeName(address, size));
    }
    SLUICE_RETURN_IF_ERROR(Pin(address, size, device));
    for (; run != end; ++run) (*run)->second.access = true;
    run = std::find_if_not(end, tiles.end(), has_access);
  }
  return absl::OkStatus();
}

absl::Status AddressSpace::Allow(Address address, Bytes size,
                                 DeviceIndex device) {
  SLUICE_RETURN_IF_ERROR(maker_->CheckPlacement(Placement::Gpu(device)));
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
  if (tiles.front()->second.memory->is_memfd()) {
    return AllowOurs(tiles, device);
  }
  std::set<int> nodes;
  for (const auto* tile : tiles) {
    const Placement where = tile->second.memory->where();
    if (where.kind == Placement::Kind::kHost) {
      nodes.insert(static_cast<int>(where.ordinal));
    }
  }
  std::vector<AccessDescription> access = {
      {{kLocationDevice, contexts_->gpus()[device.value()].device},
       kAccessReadWrite}};
  for (const int node : nodes) {
    access.push_back({{kLocationHostNuma, node}, kAccessReadWrite});
  }
  SLUICE_CUDA(library_, cuMemSetAccess, RangeName(address, size),
              ToDevice(address), size.size(), access.data(), access.size());
  for (auto* tile : tiles) tile->second.access = true;
  return absl::OkStatus();
}

}  // namespace sluice::device::cuda
