#include "kernels/device/sim/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "proto/base/status.h"

namespace sluice::device {
namespace {

absl::StatusOr<struct stat> StatDescriptor(const UniqueFd& fd) {
  struct stat result;
  if (fstat(fd.get(), &result) != 0) return ErrnoStatus(errno, "stat memory");
  return result;
}

// Opens the same memory again, as another open file description.
absl::StatusOr<UniqueFd> Reopen(const UniqueFd& fd, int mode = O_RDWR) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd.get());
  UniqueFd own(open(path.c_str(), mode | O_CLOEXEC));
  if (!own) return ErrnoStatus(errno, "open memory again");
  return own;
}

absl::StatusOr<bool> OthersHaveOpen(const UniqueFd& fd) {
  if (fcntl(fd.get(), F_SETLEASE, F_WRLCK) == 0) {
    fcntl(fd.get(), F_SETLEASE, F_UNLCK);
    return false;
  }
  if (errno == EAGAIN) return true;
  return ErrnoStatus(errno, "ask for a lease of memory");
}

// Probes whether the kernel shows everything that can hold memory: another open
// file and a mapping after its descriptor was closed, each opened for writing
// and read-only.
bool KernelTellsHolders() {
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

// Makes a range inaccessible and frees its pages, but keeps it reserved.
absl::Status Blank(Address address, Bytes size) {
  void* const blank =
      mmap(address, size.size(), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (blank != MAP_FAILED) return absl::OkStatus();
  return ErrnoStatus(errno, "unmap " + RangeName(address, size));
}

}  // namespace

absl::StatusOr<std::shared_ptr<PhysicalMemory>> PhysicalMemory::Create(
    Ledger* ledger, Placement where, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto turn, ledger->node().LockMaking());
  UniqueFd fd(memfd_create(ledger->MemfdName(where, size).c_str(),
                           MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), size.count()) != 0) {
    return ErrnoStatus(errno, "make memory of " + FormatBytes(size));
  }
  // Sealed, because a process that receives the memory must not shrink it:
  // other processes would get SIGBUS.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0) {
    return ErrnoStatus(errno, "seal memory");
  }
  // Reopened, because the kernel does not count the file that memfd_create
  // opens as a writer.
  if (TellsHolders()) {
    SLUICE_ASSIGN_OR_RETURN(fd, Reopen(fd));
  }
  SLUICE_RETURN_IF_ERROR(ledger->Add(where, size));
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(
      ledger, std::move(fd), TellsHolders() ? File::kOwn : File::kShared, where,
      size));
}

absl::StatusOr<std::shared_ptr<PhysicalMemory>> PhysicalMemory::Import(
    Ledger* ledger, const UniqueFd& fd, Placement where, Bytes size) {
  SLUICE_RETURN_IF_ERROR(ledger->CheckImport());
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        "this descriptor is no memory that sim exported");
  }
  SLUICE_ASSIGN_OR_RETURN(const struct stat status, StatDescriptor(fd));
  if (status.st_size != size.count()) {
    return absl::InvalidArgumentError(
        fmt::format("this memory has {}, not {}",
                    FormatBytes(Bytes(status.st_size)), FormatBytes(size)));
  }
  SLUICE_ASSIGN_OR_RETURN(UniqueFd own, fd.Duplicate());
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(
      /*ledger=*/nullptr, std::move(own), File::kShared, where, size));
}

absl::StatusOr<std::shared_ptr<PhysicalMemory>> PhysicalMemory::Adopt(
    Ledger* ledger, UniqueFd fd, Placement where, Bytes size) {
  SLUICE_RETURN_IF_ERROR(ledger->AddAdopted(fd, where, size));
  return std::shared_ptr<PhysicalMemory>(new PhysicalMemory(
      ledger, std::move(fd), TellsHolders() ? File::kOwn : File::kShared, where,
      size));
}

absl::StatusOr<UniqueFd> PhysicalMemory::Export() const {
  SLUICE_RETURN_IF_ERROR(CheckNotImported());
  return file_ == File::kOwn ? Reopen(fd_) : fd_.Duplicate();
}

absl::StatusOr<UniqueFd> PhysicalMemory::Keep() const {
  SLUICE_RETURN_IF_ERROR(CheckNotImported());
  return fd_.Duplicate();
}

// Sim could export imported memory, but NVIDIA's driver refuses to.
absl::Status PhysicalMemory::CheckNotImported() const {
  if (ledger_ != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "this memory of {} was imported, and only who made memory exports it: "
      "hand on the descriptor that it came by",
      FormatBytes(size_)));
}

bool PhysicalMemory::TellsHolders() {
  static const bool tells = KernelTellsHolders();
  return tells;
}

absl::StatusOr<bool> PhysicalMemory::HeldByOthers() const {
  if (file_ != File::kOwn) {
    return absl::UnimplementedError(
        "who holds this memory is known only where it was made, and where the "
        "kernel tells");
  }
  return OthersHaveOpen(fd_);
}

PhysicalMemory::~PhysicalMemory() {
  if (ledger_ != nullptr) ledger_->Leave(fd_, where_, size_);
}

AddressSpace::~AddressSpace() {
  for (const auto& [address, reservation] : book_.reservations()) {
    munmap(address, reservation.size.size());
  }
}

absl::StatusOr<Address> AddressSpace::Reserve(Bytes size,
                                              Placement::Kind kind) {
  void* const address =
      mmap(nullptr, size.size(), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return ErrnoStatus(errno, "reserve " + FormatBytes(size));
  }
  book_.AddReservation(static_cast<Address>(address), {size, kind});
  return static_cast<Address>(address);
}

absl::Status AddressSpace::Free(Address address, Bytes size) {
  SLUICE_RETURN_IF_ERROR(book_.Freeable(address, size).status());
  if (munmap(address, size.size()) != 0) {
    return ErrnoStatus(errno, "release " + RangeName(address, size));
  }
  book_.DropReservation(address);
  return absl::OkStatus();
}

absl::Status AddressSpace::Map(Address address, Bytes size,
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

absl::Status AddressSpace::Unmap(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
  SLUICE_RETURN_IF_ERROR(Blank(address, size));
  for (const auto* tile : tiles) book_.DropMapping(Address(tile->first));
  return absl::OkStatus();
}

absl::Status AddressSpace::Allow(Address address, Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(const auto tiles, book_.Tiling(address, size));
  // Done here and not in Map, because this is one call per range instead of one
  // per extent. Without access, neither a forked child nor a core dump can use
  // the range anyway.
  madvise(address, size.size(), MADV_DONTFORK);
  madvise(address, size.size(), MADV_DONTDUMP);
  if (mprotect(address, size.size(), PROT_READ | PROT_WRITE) != 0) {
    return ErrnoStatus(errno, "allow access to " + RangeName(address, size));
  }
  for (auto* tile : tiles) tile->second.access = true;
  return absl::OkStatus();
}

}  // namespace sluice::device
