#include "daemon/state/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "daemon/crash/crash_point.h"
#include "daemon/state/state_layout.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

using state_layout::Damaged;
using state_layout::Header;
using state_layout::kFirstEpoch;
using state_layout::kMagic;
using state_layout::kWord;
using state_layout::Lead;
using state_layout::Load;
using state_layout::RoundUp;
using state_layout::SumOf;

// The lower half: which version it is; the upper one: from which on it is read.
uint64_t WordOf(const StateVersions& versions) {
  return versions.written | uint64_t{versions.oldest_reader} << 32;
}

absl::Status NoRoom(std::string_view what, size_t size, size_t room) {
  return absl::ResourceExhaustedError(
      fmt::format("{} of {} bytes does not fit into {}", what, size, room));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Create(
    int fd, Sizes sizes, StateVersions versions) {
  const Layout layout = {RoundUp(sizeof(Lead) + sizes.checkpoint.size()),
                         RoundUp(sizeof(Lead) + sizes.records.size())};
  // Every page now: what is stored later asks for no memory.
  if (const int error = posix_fallocate(fd, 0, layout.size()); error != 0) {
    return ErrnoStatus(error, "make the saved state");
  }
  SLUICE_ASSIGN_OR_RETURN(auto file, Map(fd, versions));
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
      new StateFile(static_cast<std::byte*>(memory), size, versions));
}

StateFile::~StateFile() { munmap(memory_, size_); }

StateFile::Layout StateFile::layout() const {
  const auto header = Load<Header>(memory_);
  return {header.checkpoint_bytes, header.record_bytes};
}

absl::Status StateFile::Append(std::string_view record) {
  const size_t size = RoundUp(sizeof(Lead) + record.size());
  // The word behind the last record belongs to none.
  const size_t room = layout().records - end_ - kWord;
  if (size > room) return NoRoom("a record", size, room);
  const size_t here = layout().log() + end_;
  // What an older epoch has here is whole, or not looked at: it ends first, for
  // it may be longer than this one.
  StoreWord(here + offsetof(Lead, epoch), 0);
  // The word behind it says that it is the last one.
  StoreWord(here + size, 0);
  Pass(CrashPoint::kRecordBegun);
  std::memcpy(memory_ + here + sizeof(Lead), record.data(), record.size());
  Publish(here, epoch_, next_, record.size(),
          SumOf(0, record.data(), record.size()));
  end_ += size;
  ++next_;
  Pass(CrashPoint::kRecordSaved);
  return absl::OkStatus();
}

absl::Status StateFile::Checkpoint(std::string_view state) {
  const size_t room = layout().checkpoint - sizeof(Lead);
  if (state.size() > room) return NoRoom("a checkpoint", state.size(), room);
  // In the other slot: until its epoch is stored, the older one counts.
  const uint64_t epoch = NextEpoch();
  const size_t slot = layout().slot(epoch);
  StoreWord(slot + offsetof(Lead, epoch), 0);
  std::memcpy(memory_ + slot + sizeof(Lead), state.data(), state.size());
  Publish(slot, epoch, WordOf(versions_), state.size(),
          SumOf(0, state.data(), state.size()));
  epoch_ = epoch;
  end_ = 0;
  next_ = 0;
  Pass(CrashPoint::kCheckpointSaved);
  return absl::OkStatus();
}

void StateFile::Void() {
  // The one that counts last: between the two, nothing else does.
  for (const uint64_t epoch : {NextEpoch(), epoch_}) {
    StoreWord(layout().slot(epoch) + offsetof(Lead, epoch), 0);
  }
}

uint64_t StateFile::NextEpoch() const {
  return std::max(epoch_, kFirstEpoch) + 1;
}

void StateFile::Publish(size_t at, uint64_t epoch, uint64_t index,
                        uint64_t size, uint32_t sum) {
  Lead lead = {epoch, index, size, 0};
  lead.sum = SumOf(lead, sum);
  StoreWord(at + offsetof(Lead, index), lead.index);
  StoreWord(at + offsetof(Lead, size), lead.size);
  StoreWord(at + offsetof(Lead, sum), lead.sum);
  Pass(CrashPoint::kUnpublished);
  StoreWord(at + offsetof(Lead, epoch), lead.epoch);
}

// A process ends before or after it. What was stored before it in the program
// is stored before it.
void StateFile::StoreWord(size_t at, uint64_t word) {
  std::atomic_ref(*reinterpret_cast<uint64_t*>(memory_ + at))
      .store(word, std::memory_order_release);
  // Nor what comes behind it: a word that voids something is stored before that
  // is written over. Enough for the compiler is enough: what a process has
  // stored is there for the next one, in whatever order processors show it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace sluice::daemon
