#include "kernels/device/sim/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "proto/base/status.h"

namespace sluice::device {
namespace {

absl::Status Bad(std::string message) {
  return absl::InvalidArgumentError(std::move(message));
}

std::string Range(const void* address, Bytes size) {
  return fmt::format("[{}, +{})", address, FormatBytes(size));
}

absl::StatusOr<struct stat> Stat(const UniqueFd& fd) {
  struct stat result;
  if (fstat(fd.get(), &result) != 0) return ErrnoStatus(errno, "stat memory");
  return result;
}

// Makes a range unusable and gives its pages back, keeping it reserved.
absl::Status Blank(Address address, Bytes size) {
  void* const blank =
      mmap(address, size.size(), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (blank != MAP_FAILED) return absl::OkStatus();
  return ErrnoStatus(errno, "unmap " + Range(address, size));
}

}  // namespace

absl::StatusOr<std::shared_ptr<PhysicalMemory>> PhysicalMemory::Create(
    Ledger* ledger, Placement where, Bytes size) {
  UniqueFd fd(memfd_create("sluice-sim", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), size.count()) != 0) {
    return ErrnoStatus(errno, "make memory of " + FormatBytes(size));
  }
  // Nobody it is handed to may shrink it under the others (SIGBUS).
  if (fcntl(fd.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "seal memory");
  }
  SLUICE_ASSIGN_OR_RETURN(const struct stat status, Stat(fd));
  SLUICE_ASSIGN_OR_RETURN(const int slot,
                          ledger->Add(where, size, status.st_ino));
  return std::shared_ptr<PhysicalMemory>(
      new PhysicalMemory(ledger, slot, std::move(fd), where, size));
}

absl::StatusOr<std::shared_ptr<PhysicalMemory>> PhysicalMemory::Import(
    Ledger* ledger, const UniqueFd& fd, Placement where, Bytes size) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Bad("this descriptor is no memory that sim exported");
  }
  SLUICE_ASSIGN_OR_RETURN(const struct stat status, Stat(fd));
  if (status.st_size != size.count()) {
    return Bad(fmt::format("this memory has {}, not {}",
                           FormatBytes(Bytes(status.st_size)),
                           FormatBytes(size)));
  }
  SLUICE_ASSIGN_OR_RETURN(UniqueFd own, fd.Duplicate());
  SLUICE_ASSIGN_OR_RETURN(const int slot,
                          ledger->Join(where, size, status.st_ino));
  return std::shared_ptr<PhysicalMemory>(
      new PhysicalMemory(ledger, slot, std::move(own), where, size));
}

PhysicalMemory::~PhysicalMemory() {
  fd_.Reset();
  ledger_->Leave(slot_);
}

AddressSpace::~AddressSpace() {
  for (const auto& [address, size] : reservations_) {
    munmap(address, size.size());
  }
}

absl::StatusOr<Address> AddressSpace::Reserve(Bytes size) {
  void* const address = mmap(nullptr, size.size(), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return ErrnoStatus(errno, "reserve " + FormatBytes(size));
  }
  reservations_.emplace(static_cast<Address>(address), size);
  return static_cast<Address>(address);
}

absl::Status AddressSpace::Free(Address address, Bytes size) {
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second != size) {
    return Bad(Range(address, size) + " is not a reservation");
  }
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + size.size()) {
    return Bad(Range(address, size) + " has mappings: unmap them first");
  }
  munmap(address, size.size());
  reservations_.erase(it);
  return absl::OkStatus();
}

const std::pair<std::byte* const, Bytes>* AddressSpace::ReservationAt(
    const std::byte* address) const {
  auto it = reservations_.upper_bound(const_cast<std::byte*>(address));
  if (it == reservations_.begin()) return nullptr;
  --it;
  return address < it->first + it->second.size() ? &*it : nullptr;
}

absl::Status AddressSpace::Map(Address address, Bytes size,
                               std::shared_ptr<PhysicalMemory> memory) {
  if (memory->size() != size) {
    return Bad(fmt::format("the memory has {}, not {}: it maps whole",
                           FormatBytes(memory->size()), FormatBytes(size)));
  }
  const auto* reservation = ReservationAt(address);
  if (reservation == nullptr ||
      address + size.size() > reservation->first + reservation->second.size()) {
    return Bad(Range(address, size) + " is not inside one reservation");
  }
  const auto next = mappings_.lower_bound(address);
  const bool hits_next =
      next != mappings_.end() && next->first < address + size.size();
  const bool hits_previous =
      next != mappings_.begin() &&
      std::prev(next)->first + std::prev(next)->second.size.size() > address;
  if (hits_next || hits_previous) {
    return Bad(Range(address, size) + " overlaps a mapping");
  }
  void* const mapped =
      mmap(address, size.size(), PROT_NONE, MAP_SHARED | MAP_FIXED,
           memory->fd().get(), 0);
  if (mapped == MAP_FAILED) {
    return ErrnoStatus(errno, "map " + Range(address, size));
  }
  madvise(address, size.size(), MADV_DONTFORK);
  madvise(address, size.size(), MADV_DONTDUMP);
  mappings_.emplace(address, Mapping{size, std::move(memory)});
  return absl::OkStatus();
}

absl::StatusOr<
    std::pair<AddressSpace::Mappings::iterator, AddressSpace::Mappings::iterator>>
AddressSpace::Tiling(Address address, Bytes size) {
  const auto first = mappings_.find(address);
  std::byte* end = address;
  auto it = first;
  for (; it != mappings_.end() && it->first == end &&
         end < address + size.size();
       ++it) {
    end += it->second.size.size();
  }
  if (size.count() <= 0 || end != address + size.size()) {
    return Bad(Range(address, size) + " is not one or more whole mappings");
  }
  return std::pair(first, it);
}

absl::Status AddressSpace::Unmap(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, Tiling(address, size));
  SLUICE_RETURN_IF_ERROR(Blank(address, size));
  mappings_.erase(tiles.first, tiles.second);
  return absl::OkStatus();
}

absl::Status AddressSpace::Allow(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, Tiling(address, size));
  if (mprotect(address, size.size(), PROT_READ | PROT_WRITE) != 0) {
    return ErrnoStatus(errno, "allow access to " + Range(address, size));
  }
  for (auto it = tiles.first; it != tiles.second; ++it) {
    it->second.access = true;
  }
  return absl::OkStatus();
}

absl::Status AddressSpace::CheckTouchable(const std::byte* address,
                                          Bytes size) const {
  if (ReservationAt(address) == nullptr) return absl::OkStatus();
  const std::byte* const end = address + size.size();
  auto it = mappings_.upper_bound(const_cast<std::byte*>(address));
  if (it != mappings_.begin()) --it;
  const std::byte* reached = address;
  for (; it != mappings_.end() && it->first <= reached && reached < end; ++it) {
    if (!it->second.access) break;
    reached = it->first + it->second.size.size();
  }
  if (reached >= end) return absl::OkStatus();
  return Bad(fmt::format("{} is not all mapped with access; the first byte "
                         "that is not is at {}",
                         Range(address, size), static_cast<const void*>(reached)));
}

}  // namespace sluice::device
