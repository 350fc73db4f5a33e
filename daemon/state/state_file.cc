#include "daemon/state/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "daemon/crash/crash_point.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr uint64_t kMagic = 0x31'4554'4154'5343;  // "CSTATE1"
constexpr size_t kWord = sizeof(uint64_t);
// Epochs count up from here, so that a few damaged bits make no epoch 0.
constexpr uint64_t kFirstEpoch = 0x5c0d'a7e1'0000'0000;

struct Header {
  uint64_t magic;  // stored last: the version of the layout
  uint64_t checkpoint_bytes;
  uint64_t record_bytes;
};

// Precedes the bytes of a checkpoint or a record.
struct Lead {
  uint64_t epoch;  // of the checkpoint; stored last; 0: invalid
  // A record's number in its epoch. For a checkpoint, the versions (WordOf) of
  // everything that is written in this epoch.
  uint64_t index;
  uint64_t size;
  uint64_t sum;
};

size_t RoundUp(size_t size) { return (size + kWord - 1) / kWord * kWord; }

// Returns the checksum of `lead` and the bytes after it.
uint64_t SumOf(Lead lead, std::string_view bytes) {
  lead.sum = 0;
  const uLong sum =
      crc32_z(0, reinterpret_cast<const Bytef*>(&lead), sizeof(lead));
  if (bytes.empty()) return sum;  // crc32_z of a null pointer would be 0
  return crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()),
                 bytes.size());
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

absl::Status Damaged(std::string_view what) {
  return absl::FailedPreconditionError(fmt::format(
      "the saved state is damaged ({}): nothing of it is used", what));
}

// Packs the versions: the lower half is the version written, the upper half the
// oldest version that can read it.
uint64_t WordOf(const StateVersions& versions) {
  return versions.written | uint64_t{versions.oldest_reader} << 32;
}

std::string_view BytesAfter(const std::byte* lead, uint64_t size) {
  return {reinterpret_cast<const char*>(lead + sizeof(Lead)), size};
}

// Returns whether the checkpoint or record at `here` fits into `room` and has
// the right checksum.
bool IsSound(const std::byte* here, size_t room) {
  const auto lead = Load<Lead>(here);
  return lead.size <= room - sizeof(Lead) &&
         lead.sum == SumOf(lead, BytesAfter(here, lead.size));
}

absl::Status NoRoom(std::string_view what, size_t size, size_t room) {
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes does not fit into {}", what, size, room));
}

}  // namespace

absl::Status CheckStateVersion(uint32_t written, uint32_t oldest_reader,
                               const StateVersions& own) {
  if (written >= own.oldest_read && oldest_reader <= own.written) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(fmt::format(
      "the saved state is of version {}, which daemons of version {} and later "
      "read; this one is of version {} and reads {} and later: {}",
      written, oldest_reader, own.written, own.oldest_read,
      written < own.oldest_read
          ? "first start a daemon of a version between the two"
          : "start the daemon that wrote it, or a later one"));
}

size_t StateFile::Layout::slot(uint64_t epoch) const {
  return sizeof(Header) + (epoch % 2) * checkpoint;
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Create(
    int fd, Sizes sizes, StateVersions versions) {
  const Layout layout = {RoundUp(sizeof(Lead) + sizes.checkpoint.size()),
                         RoundUp(sizeof(Lead) + sizes.records.size())};
  if (ftruncate(fd, static_cast<off_t>(layout.size())) != 0) {
    return ErrnoStatus(errno, "make the saved state");
  }
  SLUICE_ASSIGN_OR_RETURN(auto file, Map(fd, versions));
  file->layout_ = layout;
  // Memory is allocated now, so that records and Void need no new memory later.
  for (const uint64_t slot : {0, 1}) {
    SLUICE_RETURN_IF_ERROR(file->TakePages(layout.slot(slot), sizeof(Lead)));
  }
  SLUICE_RETURN_IF_ERROR(file->TakePages(layout.log(), layout.records));
  file->StoreWord(offsetof(Header, checkpoint_bytes), layout.checkpoint);
  file->StoreWord(offsetof(Header, record_bytes), layout.records);
  SLUICE_RETURN_IF_ERROR(file->Checkpoint(""));
  file->StoreWord(offsetof(Header, magic), kMagic);
  return file;
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Map(
    int fd, StateVersions versions) {
  struct stat status;
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "stat the state");
  const auto size = static_cast<size_t>(status.st_size);
  if (size < sizeof(Header)) return Damaged("it has no header");
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map the state");
  return std::unique_ptr<StateFile>(
      new StateFile(fd, static_cast<std::byte*>(memory), size, versions));
}

// Allocates the pages before anything is stored there: a store to a page that
// the kernel cannot allocate would kill the process.
absl::Status StateFile::TakePages(size_t at, size_t size) {
  const int error =
      posix_fallocate(fd_, static_cast<off_t>(at), static_cast<off_t>(size));
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("no memory for {} bytes of the saved state: {}", size,
                  std::string(ErrnoStatus(error, "fallocate").message())));
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Open(
    int fd, StateVersions versions) {
  SLUICE_ASSIGN_OR_RETURN(auto file, Map(fd, versions));
  SLUICE_RETURN_IF_ERROR(file->Read());
  return file;
}

absl::Status StateFile::Read() {
  const auto header = Load<Header>(memory_);
  if (header.magic != kMagic) {
    return Damaged("its first word is not of this layout");
  }
  layout_ = {header.checkpoint_bytes, header.record_bytes};
  const auto& [checkpoint, records] = layout_;
  if (checkpoint > size_ || records > size_ || checkpoint < sizeof(Lead) ||
      records < kWord || checkpoint % kWord != 0 || records % kWord != 0 ||
      layout_.size() != size_) {
    return Damaged("its sizes do not fit into it");
  }
  SLUICE_RETURN_IF_ERROR(ReadCheckpoint());
  return ReadRecords();
}

absl::Status StateFile::ReadCheckpoint() {
  uint64_t versions = 0;
  for (const uint64_t slot : {0, 1}) {
    const std::byte* const here = memory_ + layout_.slot(slot);
    const auto lead = Load<Lead>(here);
    if (lead.epoch == 0) continue;  // void, or not written to its end
    if (lead.epoch % 2 != slot || !IsSound(here, layout_.checkpoint)) {
      return Damaged(fmt::format("checkpoint {}", slot));
    }
    if (lead.epoch <= epoch_) continue;
    epoch_ = lead.epoch;
    versions = lead.index;
    contents_.checkpoint = BytesAfter(here, lead.size);
  }
  // Only Void makes both invalid: a checkpoint overwrites only the older one.
  if (epoch_ == 0) return absl::NotFoundError("the saved state was given up");
  return CheckStateVersion(static_cast<uint32_t>(versions),
                           static_cast<uint32_t>(versions >> 32), versions_);
}

absl::Status StateFile::ReadRecords() {
  while (true) {
    const std::byte* const here = memory_ + layout_.log() + end_;
    const size_t room = layout_.records - end_;
    // A valid file has room for the word that marks the end (Append).
    if (room < kWord) return Damaged("its records have no end");
    if (Load<uint64_t>(here) == 0) return absl::OkStatus();  // the end
    if (room < sizeof(Lead) || !IsSound(here, room)) {
      return Damaged(fmt::format("record {}", next_));
    }
    const auto lead = Load<Lead>(here);
    // A record of the older checkpoint: the newer one has no records yet.
    if (end_ == 0 && lead.epoch < epoch_) return absl::OkStatus();
    if (lead.epoch != epoch_ || lead.index != next_) {
      return Damaged(fmt::format("record {}", next_));
    }
    contents_.records.emplace_back(BytesAfter(here, lead.size));
    end_ += RoundUp(sizeof(Lead) + lead.size);
    ++next_;
  }
}

StateFile::~StateFile() { munmap(memory_, size_); }

absl::Status StateFile::Append(std::string_view record) {
  const size_t size = RoundUp(sizeof(Lead) + record.size());
  // The word after the last record marks the end.
  const size_t room = layout_.records - end_ - kWord;
  if (size > room) return NoRoom("a record", size, room);
  const size_t here = layout_.log() + end_;
  // The record of an older epoch at this place may be longer than this one. It
  // is voided before its bytes are overwritten.
  StoreWord(here + offsetof(Lead, epoch), 0);
  StoreWord(here + size, 0);  // the end, after this record
  Pass("record-begun");
  Publish(here, epoch_, next_, record);
  end_ += size;
  ++next_;
  Pass("record-saved");
  return absl::OkStatus();
}

absl::Status StateFile::Checkpoint(std::string_view state) {
  const size_t room = layout_.checkpoint - sizeof(Lead);
  if (state.size() > room) return NoRoom("a checkpoint", state.size(), room);
  // Overwrites the older checkpoint. The newer one stays the valid one until
  // the epoch of this one is stored.
  const uint64_t epoch = NextEpoch();
  const size_t slot = layout_.slot(epoch);
  SLUICE_RETURN_IF_ERROR(TakePages(slot, sizeof(Lead) + state.size()));
  StoreWord(slot + offsetof(Lead, epoch), 0);
  Publish(slot, epoch, WordOf(versions_), state);
  epoch_ = epoch;
  end_ = 0;
  next_ = 0;
  Pass("checkpoint-saved");
  return absl::OkStatus();
}

void StateFile::Void() {
  // Voids the newer checkpoint last, so that the older one never becomes the
  // newest valid one.
  for (const uint64_t epoch : {NextEpoch(), epoch_}) {
    StoreWord(layout_.slot(epoch) + offsetof(Lead, epoch), 0);
  }
}

uint64_t StateFile::NextEpoch() const {
  return std::max(epoch_, kFirstEpoch) + 1;
}

void StateFile::Publish(size_t at, uint64_t epoch, uint64_t index,
                        std::string_view bytes) {
  std::memcpy(memory_ + at + sizeof(Lead), bytes.data(), bytes.size());
  Lead lead = {epoch, index, bytes.size(), 0};
  lead.sum = SumOf(lead, bytes);
  StoreWord(at + offsetof(Lead, index), lead.index);
  StoreWord(at + offsetof(Lead, size), lead.size);
  StoreWord(at + offsetof(Lead, sum), lead.sum);
  Pass("unpublished");
  StoreWord(at + offsetof(Lead, epoch), lead.epoch);
}

// Stores a word atomically: a process that dies has stored all of it or
// nothing. Earlier stores of the program are not moved behind this one.
void StateFile::StoreWord(size_t at, uint64_t word) {
  std::atomic_ref(*reinterpret_cast<uint64_t*>(memory_ + at))
      .store(word, std::memory_order_release);
  // Later stores are not moved before this one: for example, a record is
  // overwritten only after it was voided. A compiler fence is enough: the next
  // process sees all stores of an ended process, in whatever order processors
  // made them visible.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace sluice::daemon
