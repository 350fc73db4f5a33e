// Records which addresses a driver has reserved and which memory is mapped
// there, and checks the rules of driver.h. The driver, sim or cuda, makes the
// real calls. `M` is the driver's PhysicalMemory, with size() and where().
//
// Thread safety: none; the driver locks.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/driver.h"

namespace sluice::device {

inline std::string RangeName(const void* address, Bytes size) {
  return fmt::format("[{}, +{})", address, FormatBytes(size));
}

template <typename M>
class AddressBook {
 public:
  struct Reservation {
    Bytes size;
    Placement::Kind kind;
  };
  struct Mapping {
    Bytes size;
    std::shared_ptr<M> memory;
    bool access = false;
  };

  void AddReservation(Address address, Reservation reservation) {
    reservations_.emplace(address, reservation);
  }
  const std::map<Address, Reservation>& reservations() const {
    return reservations_;
  }
  const std::map<Address, Mapping>& mappings() const { return mappings_; }

  // Returns the reservation of exactly this range, if it has no mappings.
  absl::StatusOr<Reservation> Freeable(Address address, Bytes size) const {
    const auto it = reservations_.find(address);
    if (it == reservations_.end() || it->second.size != size) {
      return Bad(RangeName(address, size) + " is not a reservation");
    }
    const auto mapping = mappings_.lower_bound(address);
    if (mapping != mappings_.end() && mapping->first < address + size.size()) {
      return Bad(RangeName(address, size) + " has mappings: unmap them first");
    }
    return it->second;
  }
  void DropReservation(Address address) { reservations_.erase(address); }

  absl::Status CheckMappable(Address address, Bytes size,
                             const M& memory) const {
    if (memory.size() != size) {
      return Bad(fmt::format("memory of {} is mapped whole, not {} of it",
                             FormatBytes(memory.size()), FormatBytes(size)));
    }
    const auto reservation = ReservationAt(address);
    if (reservation == reservations_.end() ||
        address + size.size() >
            reservation->first + reservation->second.size.size()) {
      return Bad(RangeName(address, size) + " is not inside one reservation");
    }
    if (reservation->second.kind != memory.where().kind) {
      return Bad(RangeName(address, size) + " is reserved for " +
                 (memory.where().kind == Placement::Kind::kGpu
                      ? "host memory, not a GPU's"
                      : "a GPU's memory, not the host's"));
    }
    const auto next = mappings_.lower_bound(address);
    const bool hits_next =
        next != mappings_.end() && next->first < address + size.size();
    const bool hits_previous =
        next != mappings_.begin() && End(std::prev(next)) > address;
    if (!hits_next && !hits_previous) return absl::OkStatus();
    return Bad(RangeName(address, size) + " overlaps a mapping");
  }
  void AddMapping(Address address, std::shared_ptr<M> memory) {
    const Bytes size = memory->size();
    mappings_.emplace(address, Mapping{size, std::move(memory)});
  }

  using Tile = std::pair<const Address, Mapping>;
  // Returns the mappings that cover exactly this range. The pointers are valid
  // until mappings change.
  absl::StatusOr<std::vector<Tile*>> Tiling(Address address, Bytes size) {
    std::vector<Tile*> tiles;
    Address end = address;
    for (auto it = mappings_.find(address);
         it != mappings_.end() && it->first == end &&
         end < address + size.size();
         ++it) {
      tiles.push_back(&*it);
      end = End(it);
    }
    if (size.count() > 0 && end == address + size.size()) return tiles;
    return Bad(RangeName(address, size) + " is not one or more whole mappings");
  }
  void DropMapping(Address address) { mappings_.erase(address); }

  // Checks that a copy may touch the range: the range begins outside all
  // reservations, or is mapped with access as a whole.
  absl::Status CheckTouchable(const std::byte* from, Bytes size) const {
    const auto address = const_cast<Address>(from);
    if (ReservationAt(address) == reservations_.end()) return absl::OkStatus();
    const Address end = address + size.size();
    Address reached = address;
    auto it = mappings_.upper_bound(address);
    if (it != mappings_.begin()) --it;
    for (; it != mappings_.end() && it->first <= reached && reached < end;
         ++it) {
      if (!it->second.access || End(it) <= reached) break;
      reached = End(it);
    }
    if (reached >= end) return absl::OkStatus();
    return Bad(fmt::format(
        "{} is not all mapped with access; the first byte without is at {}",
        RangeName(address, size), static_cast<const void*>(reached)));
  }

 private:
  static absl::Status Bad(const std::string& message) {
    return absl::InvalidArgumentError(message);
  }
  static Address End(typename std::map<Address, Mapping>::const_iterator it) {
    return it->first + it->second.size.size();
  }
  typename std::map<Address, Reservation>::const_iterator ReservationAt(
      Address address) const {
    auto it = reservations_.upper_bound(address);
    if (it == reservations_.begin()) return reservations_.end();
    --it;
    return address < it->first + it->second.size.size() ? it
                                                        : reservations_.end();
  }

  std::map<Address, Reservation> reservations_;
  std::map<Address, Mapping> mappings_;
};

}  // namespace sluice::device
