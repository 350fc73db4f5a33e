#include "kernels/device/sim/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "kernels/device/sim/memory_name.h"
#include "kernels/device/sim/outside.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

// Other users write to the state: no number of it is an index unchecked.
uint32_t HighWater(const SharedState& state) {
  return std::min<uint32_t>(state.slots_high_water, kLedgerSlots);
}

std::span<uint64_t> UsedInodes(SharedState& state) {
  return {state.inodes, HighWater(state)};
}

int64_t& Used(SharedState& state, uint32_t kind, uint32_t ordinal) {
  return kind == static_cast<uint32_t>(Placement::Kind::kHost)
             ? state.host_used
             : state.gpu_used[ordinal % kSimMaxGpus];
}

Bytes Used(SharedState& state, Placement where) {
  return Bytes(Used(state, static_cast<uint32_t>(where.kind),
                    static_cast<uint32_t>(where.ordinal)));
}

void AddUpAgain(SharedState& state) {
  state.host_used = 0;
  std::ranges::fill(state.gpu_used, 0);
  for (uint32_t i = 0; i < HighWater(state); ++i) {
    if (state.inodes[i] == 0) continue;
    const LedgerSlot& slot = state.slots[i];
    Used(state, slot.kind, slot.ordinal) += slot.size;
  }
}

class StateLock {
 public:
  explicit StateLock(SharedState& state) : mutex_(&state.mutex) {
    const int error = pthread_mutex_lock(mutex_);
    SLUICE_CHECK(error == 0 || error == EOWNERDEAD);
    if (error == 0) return;
    // The holder died. Slots are never half done (see state.h), and what it
    // held is given back like any dead process's; the sums may be off by its
    // last change.
    AddUpAgain(state);
    pthread_mutex_consistent(mutex_);
  }
  ~StateLock() { pthread_mutex_unlock(mutex_); }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  pthread_mutex_t* const mutex_;
};

Bytes Total(const SimConfig& config, Placement where) {
  return where.kind == Placement::Kind::kGpu ? config.gpus[where.ordinal].memory
                                             : config.host_memory;
}

absl::Status Full(Placement where, Bytes size, Bytes used, Bytes total) {
  return ShortOf(
      where.kind == Placement::Kind::kGpu ? Shortage::kGpuMemory
                                          : Shortage::kHostMemory,
      fmt::format("{} asked on {}, {} of {} used: free some, or simulate more",
                  FormatBytes(size), PlacementName(where), FormatBytes(used),
                  FormatBytes(total)));
}

void TakeSlot(SharedState& state, int index, uint64_t inode) {
  const LedgerSlot& slot = state.slots[index];
  Used(state, slot.kind, slot.ordinal) += slot.size;
  std::atomic_ref(state.inodes[index]).store(inode, std::memory_order_release);
}

// Frees the slot if nobody is left.
void DropIfUnheld(SharedState& state, int index) {
  if (state.inodes[index] == 0) return;
  const LedgerSlot& slot = state.slots[index];
  for (const LedgerHolder& holder : slot.holders) {
    if (holder.count > 0) return;
  }
  state.inodes[index] = 0;
  Used(state, slot.kind, slot.ordinal) -= slot.size;
}

void DropDeadHolders(SharedState& state) {
  std::map<int32_t, int64_t> alive;  // pid -> start time
  for (uint32_t i = 0; i < HighWater(state); ++i) {
    if (state.inodes[i] == 0) continue;
    for (LedgerHolder& holder : state.slots[i].holders) {
      if (holder.count == 0) continue;
      const auto [it, unseen] = alive.try_emplace(holder.pid, 0);
      if (unseen) it->second = ProcessStartTime(holder.pid);
      if (it->second != holder.start_time) holder.count = 0;
    }
    DropIfUnheld(state, static_cast<int>(i));
  }
}

// The slot of `inode` (0: a free one among those once used), or -1.
int FindSlot(SharedState& state, uint64_t inode) {
  const std::span<uint64_t> inodes = UsedInodes(state);
  const auto it = std::ranges::find(inodes, inode);
  return it == inodes.end() ? -1 : static_cast<int>(it - inodes.begin());
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  SLUICE_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  return number;
}

int FreeSlot(SharedState& state) {
  const int slot = FindSlot(state, 0);
  if (slot >= 0 || HighWater(state) == kLedgerSlots) return slot;
  return static_cast<int>(state.slots_high_water++ % kLedgerSlots);
}

}  // namespace

int64_t ProcessStartTime(int32_t pid) {
  const int fd =
      open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const UniqueFd owner(fd);
  char text[1024];
  const ssize_t size = read(fd, text, sizeof(text) - 1);
  if (size <= 0) return 0;
  text[size] = '\0';
  // The command name (field 2) may hold anything: start after its ')'.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr) return 0;
  if (field[1] == ' ' && (field[2] == 'Z' || field[2] == 'X')) return 0;
  for (int i = 2; i < 22 && field != nullptr; ++i) {
    field = std::strchr(field + 1, ' ');
  }
  return field == nullptr ? 0 : std::atoll(field + 1);
}

Ledger::Ledger(NodeMapping* node)
    : node_(node),
      pid_(getpid()),
      start_time_(ProcessStartTime(pid_)),
      maker_(RandomNumber()) {}

Ledger::Source Ledger::SourceOf(Placement where) {
  return {where.kind, where.kind == Placement::Kind::kGpu ? where.ordinal : 0};
}

std::string Ledger::MemfdName(Placement where, Bytes size) const {
  return ToText(MemoryName{node_->name(), maker_, where, size});
}

std::map<Placement, Bytes> Ledger::HeldOutside() {
  std::map<Placement, Bytes> held;
  std::map<Source, Bytes> outside;
  for (const auto& [where, size] : FindOutside(node_->name(), maker_)) {
    if (!node_->Has(where)) continue;
    Bytes& sum = outside[SourceOf(where)];
    held[where] = std::min(size, Total(node_->config(), where) - sum);
    sum += held[where];
  }
  const MutexLock lock(mutex_);
  outside_ = std::move(outside);
  return held;
}

absl::StatusOr<int> Ledger::AddOwn(Placement where, Bytes size) {
  const MutexLock lock(mutex_);
  const Source from = SourceOf(where);
  const Bytes total = Total(node_->config(), where);
  const Bytes outside = outside_[from];
  Bytes& used = used_[from];
  if (used + outside + size > total) {
    return Full(where, size, used + outside, total);
  }
  used += size;
  pieces_[next_piece_] = {from, size};
  return next_piece_++;
}

absl::Status Ledger::HoldLocked(LedgerSlot& slot) {
  LedgerHolder* free_entry = nullptr;
  for (LedgerHolder& holder : slot.holders) {
    if (holder.count > 0 && holder.pid == pid_ &&
        holder.start_time == start_time_) {
      ++holder.count;
      return absl::OkStatus();
    }
    if (holder.count == 0 && free_entry == nullptr) free_entry = &holder;
  }
  if (free_entry == nullptr) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} processes hold this memory already, which is sim's limit",
        kLedgerHolders));
  }
  *free_entry = {.start_time = start_time_, .pid = pid_, .count = 1};
  return absl::OkStatus();
}

absl::StatusOr<int> Ledger::AddLocked(Placement where, Bytes size,
                                      uint64_t inode) {
  SharedState& state = node_->state();
  const Bytes total = Total(node_->config(), where);
  if (Used(state, where) + size > total) DropDeadHolders(state);
  const Bytes used = Used(state, where);
  if (used + size > total) return Full(where, size, used, total);
  const int index = FreeSlot(state);
  if (index < 0) {
    return absl::ResourceExhaustedError(fmt::format(
        "the simulated node has {} pieces of memory, its limit: use larger "
        "extents",
        kLedgerSlots));
  }
  LedgerSlot& slot = state.slots[index];
  slot = {.size = size.count(),
          .kind = static_cast<uint32_t>(where.kind),
          .ordinal = static_cast<uint32_t>(where.ordinal)};
  SLUICE_RETURN_IF_ERROR(HoldLocked(slot));
  TakeSlot(state, index, inode);
  return index;
}

absl::StatusOr<int> Ledger::Add(Placement where, Bytes size, uint64_t inode) {
  if (node_->books() == Books::kOwn) return AddOwn(where, size);
  const StateLock lock(node_->state());
  return AddLocked(where, size, inode);
}

absl::StatusOr<std::optional<int>> Ledger::Join(Placement where, Bytes size,
                                                uint64_t inode) {
  if (node_->books() == Books::kOwn) {
    return absl::UnimplementedError(
        "the process that makes the simulated node's memory imports none");
  }
  SharedState& state = node_->state();
  // Memory was entered before its first descriptor was handed out.
  if (FindSlot(state, inode) < 0) return std::nullopt;
  const StateLock lock(state);
  const int index = FindSlot(state, inode);
  if (index < 0) return std::nullopt;
  LedgerSlot& slot = state.slots[index];
  if (slot.kind != static_cast<uint32_t>(where.kind) ||
      slot.ordinal != static_cast<uint32_t>(where.ordinal) ||
      slot.size != size.count()) {
    return absl::InvalidArgumentError(fmt::format("this memory is not {} on {}",
                                                  FormatBytes(size),
                                                  PlacementName(where)));
  }
  if (HoldLocked(slot).ok()) return index;
  DropDeadHolders(state);
  if (state.inodes[index] == 0) return std::nullopt;
  SLUICE_RETURN_IF_ERROR(HoldLocked(slot));
  return index;
}

void Ledger::Leave(int slot_index) {
  if (node_->books() == Books::kOwn) {
    const MutexLock lock(mutex_);
    const auto piece = pieces_.find(slot_index);
    used_[piece->second.from] -= piece->second.size;
    pieces_.erase(piece);
    return;
  }
  SharedState& state = node_->state();
  const StateLock lock(state);
  for (LedgerHolder& holder : state.slots[slot_index].holders) {
    if (holder.count > 0 && holder.pid == pid_ &&
        holder.start_time == start_time_) {
      --holder.count;
      break;
    }
  }
  DropIfUnheld(state, slot_index);
}

absl::StatusOr<MemoryUse> Ledger::Usage(Placement where) {
  if (node_->books() == Books::kOwn) {
    const MutexLock lock(mutex_);
    const Source from = SourceOf(where);
    return MemoryUse{Total(node_->config(), where),
                     used_[from] + outside_[from]};
  }
  SharedState& state = node_->state();
  const StateLock lock(state);
  DropDeadHolders(state);
  return MemoryUse{Total(node_->config(), where), Used(state, where)};
}

}  // namespace sluice::device
