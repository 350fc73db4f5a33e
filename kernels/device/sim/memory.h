// Physical memory of the simulated node (sealed memfds, counted in the ledger),
// and this process's reserved address ranges and mappings.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/address_book.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/ledger.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// One process's hold on a piece of physical memory, shared by the handle and
// each mapping. The destructor removes the memory from the ledger.
class PhysicalMemory {
 public:
  static absl::StatusOr<std::shared_ptr<PhysicalMemory>> Create(Ledger* ledger,
                                                                Placement where,
                                                                Bytes size);
  static absl::StatusOr<std::shared_ptr<PhysicalMemory>> Import(
      Ledger* ledger, const UniqueFd& fd, Placement where, Bytes size);
  // Takes over memory that an earlier maker of the node's memory made.
  static absl::StatusOr<std::shared_ptr<PhysicalMemory>> Adopt(Ledger* ledger,
                                                               UniqueFd fd,
                                                               Placement where,
                                                               Bytes size);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  const UniqueFd& fd() const { return fd_; }
  // Returns a descriptor for other processes. For memory made here, it is a
  // separate open file, so that HeldByOthers sees it.
  absl::StatusOr<UniqueFd> Export() const;
  // Returns a descriptor that HeldByOthers does not see.
  absl::StatusOr<UniqueFd> Keep() const;

  // Returns whether HeldByOthers works; probed once. It relies on write leases:
  // the kernel grants one on a file exactly if no other open file of it exists,
  // and a mapping or a descriptor in flight keeps one open. Returns false if
  // /proc is missing or the kernel behaves differently.
  static bool TellsHolders();
  absl::StatusOr<bool> HeldByOthers() const;
  Placement where() const { return where_; }
  Bytes size() const { return size_; }

 private:
  // kOwn: only this handle uses the open file `fd_`.
  enum class File { kOwn, kShared };
  // `ledger` is null for imported memory.
  PhysicalMemory(Ledger* ledger, UniqueFd fd, File file, Placement where,
                 Bytes size)
      : ledger_(ledger),
        fd_(std::move(fd)),
        file_(file),
        where_(where),
        size_(size) {}
  absl::Status CheckNotImported() const;

  Ledger* const ledger_;
  UniqueFd fd_;
  const File file_;
  const Placement where_;
  const Bytes size_;
};

// Reservations and mappings of one driver. Mappings are PROT_NONE until Allow.
// A forked child inherits no mapping, and a core dump contains none.
//
// Thread safety: none; the driver locks.
class AddressSpace {
 public:
  AddressSpace() = default;
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind);
  absl::Status Free(Address address, Bytes size);
  absl::Status Map(Address address, Bytes size,
                   std::shared_ptr<PhysicalMemory> memory);
  absl::Status Unmap(Address address, Bytes size);
  absl::Status Allow(Address address, Bytes size);
  absl::Status CheckTouchable(const std::byte* address, Bytes size) const {
    return book_.CheckTouchable(address, size);
  }

 private:
  AddressBook<PhysicalMemory> book_;
};

}  // namespace sluice::device
