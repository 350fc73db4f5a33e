// Physical memory of the simulated node, and this process's address ranges.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/address_book.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/ledger.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// One process's hold on a piece of physical memory, shared by the handle and
// each mapping. The destructor removes the memory from the ledger.
class PhysicalMemory {
 public:
  static absl::StatusOr<std::shared_ptr<PhysicalMemory>> Create(Ledger* ledger,
                                                                Placement where,
                                                                Bytes size) {
    SLUICE_ASSIGN_OR_RETURN(const auto turn, ledger->node().LockMaking());
    UniqueFd fd(memfd_create(ledger->MemfdName(where, size).c_str(),
                             MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return ErrnoStatus(errno, "memfd_create");
    if (ftruncate(fd.get(), size.count()) != 0) {
      return ErrnoStatus(errno, "make memory of " + FormatBytes(size));
    }
    // A receiver must not shrink the memory: other processes would get SIGBUS.
    if (fcntl(fd.get(), F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return ErrnoStatus(errno, "seal memory");
    }
    // Reopens the file for HeldByOthers, because the kernel does not count the
    // descriptor of memfd_create as a writer.
    if (TellsHolders()) {
      SLUICE_ASSIGN_OR_RETURN(fd, Reopen(fd));
    }
    SLUICE_RETURN_IF_ERROR(ledger->Add(where, size));
    return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(
        ledger, std::move(fd), TellsHolders() ? File::kOwn : File::kShared,
        where, size));
  }

  static absl::StatusOr<std::shared_ptr<PhysicalMemory>> Import(
      Ledger* ledger, const UniqueFd& fd, Placement where, Bytes size) {
    SLUICE_RETURN_IF_ERROR(ledger->CheckImport());
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return absl::InvalidArgumentError(
          "this descriptor is no memory that sim exported");
    }
    struct stat status;
    if (fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, "stat memory");
    if (status.st_size != size.count()) {
      return absl::InvalidArgumentError(
          fmt::format("this memory has {}, not {}",
                      FormatBytes(Bytes(status.st_size)), FormatBytes(size)));
    }
    SLUICE_ASSIGN_OR_RETURN(UniqueFd own, fd.Duplicate());
    return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(
        /*ledger=*/nullptr, std::move(own), File::kShared, where, size));
  }

  // Takes over memory that an earlier maker of the node's memory made.
  static absl::StatusOr<std::shared_ptr<PhysicalMemory>> Adopt(Ledger* ledger,
                                                               UniqueFd fd,
                                                               Placement where,
                                                               Bytes size) {
    SLUICE_RETURN_IF_ERROR(ledger->AddAdopted(fd, where, size));
    return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(
        ledger, std::move(fd), TellsHolders() ? File::kOwn : File::kShared,
        where, size));
  }

  ~PhysicalMemory() {
    if (ledger_ != nullptr) ledger_->Leave(fd_, where_, size_);
  }

  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  const UniqueFd& fd() const { return fd_; }
  // Exports a separate open file if possible, so that HeldByOthers sees it.
  absl::StatusOr<UniqueFd> Export() const {
    SLUICE_RETURN_IF_ERROR(CheckNotImported());
    return file_ == File::kOwn ? Reopen(fd_) : fd_.Duplicate();
  }

  // Returns a descriptor that HeldByOthers does not see.
  absl::StatusOr<UniqueFd> Keep() const {
    SLUICE_RETURN_IF_ERROR(CheckNotImported());
    return fd_.Duplicate();
  }

  // Returns whether HeldByOthers works; probed once. HeldByOthers relies on
  // write leases: the kernel grants a lease exactly if no other open file
  // description of the memory exists. Mappings and descriptors in flight keep
  // their descriptions open.
  static bool TellsHolders() {
    static const bool tells = KernelTellsHolders();
    return tells;
  }

  absl::StatusOr<bool> HeldByOthers() const {
    if (file_ != File::kOwn) {
      return absl::UnimplementedError(
          "only the process that made this memory can ask for its holders, and "
          "only if the kernel shows them");
    }
    return OthersHaveOpen(fd_);
  }

  Placement where() const { return where_; }
  Bytes size() const { return size_; }

 private:
  // kOwn: Export reopens the file, so no importer shares `fd_`'s open file.
  enum class File { kOwn, kShared };
  // `ledger` is null for imported memory.
  PhysicalMemory(Ledger* ledger, UniqueFd fd, File file, Placement where,
                 Bytes size)
      : ledger_(ledger),
        fd_(std::move(fd)),
        file_(file),
        where_(where),
        size_(size) {}
  // Opens the same memory again, as another open file description.
  static absl::StatusOr<UniqueFd> Reopen(const UniqueFd& fd,
                                         int mode = O_RDWR) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd.get());
    UniqueFd own(open(path.c_str(), mode | O_CLOEXEC));
    if (!own) return ErrnoStatus(errno, "open memory again");
    return own;
  }

  static absl::StatusOr<bool> OthersHaveOpen(const UniqueFd& fd) {
    if (fcntl(fd.get(), F_SETLEASE, F_WRLCK) == 0) {
      fcntl(fd.get(), F_SETLEASE, F_UNLCK);
      return false;
    }
    if (errno == EAGAIN) return true;
    return ErrnoStatus(errno, "ask for a lease of memory");
  }

  // Probes whether the kernel shows everything that can hold memory: another
  // open file, and a mapping with its descriptor closed, for a writable and for
  // a read-only descriptor.
  static bool KernelTellsHolders() {
    constexpr size_t kBytes = 4096;
    const UniqueFd made(memfd_create("sluice-probe", MFD_CLOEXEC));
    if (!made || ftruncate(made.get(), kBytes) != 0) return false;
    const auto opened = Reopen(made);
    if (!opened.ok()) return false;
    const UniqueFd& own = *opened;
    const auto says = [&](bool held) {
      const auto answer = OthersHaveOpen(own);
      return answer.ok() && *answer == held;
    };
    if (!says(false)) return false;
    for (const int mode : {O_RDWR, O_RDONLY}) {
      auto other = Reopen(own, mode);
      if (!other.ok() || !says(true)) return false;
      void* const mapped =
          mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, other->get(), 0);
      if (mapped == MAP_FAILED) return false;
      other->Reset();
      const bool seen = says(true);
      munmap(mapped, kBytes);
      if (!seen || !says(false)) return false;
    }
    return true;
  }

  // Sim could export imported memory, but NVIDIA's driver refuses to.
  absl::Status CheckNotImported() const {
    if (ledger_ != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format(
        "this memory of {} was imported, and only the process that made it "
        "exports it: pass on the descriptor that it was imported from",
        FormatBytes(size_)));
  }

  Ledger* const ledger_;
  UniqueFd fd_;
  const File file_;
  const Placement where_;
  const Bytes size_;
};

// One driver's reservations and mappings. A mapping is PROT_NONE until Allow,
// and never readable in forked children or core dumps. Thread safety: none; the
// driver locks.
class AddressSpace {
 public:
  AddressSpace() = default;
  ~AddressSpace() {
    for (const auto& [address, reservation] : book_.reservations()) {
      munmap(address, reservation.size.size());
    }
  }

  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  absl::StatusOr<Address> Reserve(Bytes size, Placement::Kind kind) {
    void* const address =
        mmap(nullptr, size.size(), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return ErrnoStatus(errno, "reserve " + FormatBytes(size));
    }
    book_.AddReservation(static_cast<Address>(address), {size, kind});
    return static_cast<Address>(address);
  }

  absl::Status Free(Address address, Bytes size) {
    SLUICE_RETURN_IF_ERROR(book_.Freeable(address, size).status());
    if (munmap(address, size.size()) != 0) {
      return ErrnoStatus(errno, "release " + RangeName(address, size));
    }
    book_.DropReservation(address);
    return absl::OkStatus();
  }

  absl::Status Map(Address address, Bytes size,
                   std::shared_ptr<PhysicalMemory> memory) {
    SLUICE_RETURN_IF_ERROR(book_.CheckMappable(address, size, *memory));
    void* const mapped = mmap(address, size.size(), PROT_NONE,
                              MAP_SHARED | MAP_FIXED, memory->fd().get(), 0);
    if (mapped == MAP_FAILED) {
      return ErrnoStatus(errno, "map " + RangeName(address, size));
    }
    book_.AddMapping(address, std::move(memory));
    return absl::OkStatus();
  }

  absl::Status Unmap(Address address, Bytes size) {
    SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
    // Makes the range inaccessible and frees its pages, but keeps it reserved.
    if (mmap(address, size.size(), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED) {
      return ErrnoStatus(errno, "unmap " + RangeName(address, size));
    }
    for (const auto* tile : tiles) book_.DropMapping(Address(tile->first));
    return absl::OkStatus();
  }

  absl::Status Allow(Address address, Bytes size) {
    SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
    // Map does not call madvise, because one call here serves many mappings. A
    // mapping without access is unreadable in a forked child or a core dump.
    madvise(address, size.size(), MADV_DONTFORK);
    madvise(address, size.size(), MADV_DONTDUMP);
    if (mprotect(address, size.size(), PROT_READ | PROT_WRITE) != 0) {
      return ErrnoStatus(errno, "allow access to " + RangeName(address, size));
    }
    for (auto* tile : tiles) tile->second.access = true;
    return absl::OkStatus();
  }

  absl::Status CheckTouchable(const std::byte* address, Bytes size) const {
    return book_.CheckTouchable(address, size);
  }

 private:
  AddressBook<PhysicalMemory> book_;
};

}  // namespace sluice::device
