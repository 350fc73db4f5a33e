#include "kernels/device/sim/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "proto/base/status.h"

namespace sluice::device {
namespace {

class StateLock {
 public:
  explicit StateLock(SharedState& state) : mutex_(&state.mutex) {
    const int error = pthread_mutex_lock(mutex_);
    // The holder died. Slots are never half done (see state.h), and what it
    // held is given back like any dead process's.
    if (error == EOWNERDEAD) pthread_mutex_consistent(mutex_);
    SLUICE_CHECK(error == 0 || error == EOWNERDEAD);
  }
  ~StateLock() { pthread_mutex_unlock(mutex_); }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  pthread_mutex_t* const mutex_;
};

std::span<LedgerSlot> UsedSlots(SharedState& state) {
  return {state.slots, state.slots_high_water};
}

bool Matches(const LedgerSlot& slot, Placement where) {
  // All NUMA nodes share the node's host memory.
  return slot.inode != 0 && slot.kind == static_cast<uint32_t>(where.kind) &&
         (where.kind == Placement::Kind::kHost ||
          slot.ordinal == where.ordinal);
}

// What `where` draws on: a GPU's memory, or the whole node's host memory.
Bytes UsedLocked(SharedState& state, Placement where) {
  Bytes used;
  for (const LedgerSlot& slot : UsedSlots(state)) {
    if (Matches(slot, where)) used += Bytes(slot.size);
  }
  return used;
}

Bytes Total(const SharedState& state, Placement where) {
  return Bytes(where.kind == Placement::Kind::kGpu
                   ? state.gpus[where.ordinal].memory
                   : state.host_memory);
}

// Frees the slot if nobody is left.
void DropIfUnheld(LedgerSlot& slot) {
  for (const LedgerHolder& holder : slot.holders) {
    if (holder.count > 0) return;
  }
  slot.inode = 0;
}

void DropDeadHolders(SharedState& state) {
  std::map<int32_t, int64_t> alive;  // pid -> start time
  for (LedgerSlot& slot : UsedSlots(state)) {
    if (slot.inode == 0) continue;
    for (LedgerHolder& holder : slot.holders) {
      if (holder.count == 0) continue;
      const auto [it, unseen] = alive.try_emplace(holder.pid, 0);
      if (unseen) it->second = ProcessStartTime(holder.pid);
      if (it->second != holder.start_time) holder.count = 0;
    }
    DropIfUnheld(slot);
  }
}

LedgerSlot* FreeSlot(SharedState& state) {
  for (LedgerSlot& slot : UsedSlots(state)) {
    if (slot.inode == 0) return &slot;
  }
  if (state.slots_high_water == kLedgerSlots) return nullptr;
  return &state.slots[state.slots_high_water++];
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
    : node_(node), pid_(getpid()), start_time_(ProcessStartTime(pid_)) {}

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
  const Bytes total = Total(state, where);
  if (UsedLocked(state, where) + size > total) DropDeadHolders(state);
  const Bytes used = UsedLocked(state, where);
  if (used + size > total) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} asked on {}, {} of {} used: free some, or simulate more",
        FormatBytes(size), PlacementName(where), FormatBytes(used),
        FormatBytes(total)));
  }
  LedgerSlot* slot = FreeSlot(state);
  if (slot == nullptr) {
    return absl::ResourceExhaustedError(fmt::format(
        "the simulated node has {} pieces of memory, its limit: use larger "
        "extents",
        kLedgerSlots));
  }
  slot->size = size.count();
  slot->kind = static_cast<uint32_t>(where.kind);
  slot->ordinal = static_cast<uint32_t>(where.ordinal);
  for (LedgerHolder& holder : slot->holders) holder = {};
  SLUICE_RETURN_IF_ERROR(HoldLocked(*slot));
  std::atomic_ref(slot->inode).store(inode, std::memory_order_release);
  return static_cast<int>(slot - state.slots);
}

absl::StatusOr<int> Ledger::Add(Placement where, Bytes size, uint64_t inode) {
  const StateLock lock(node_->state());
  return AddLocked(where, size, inode);
}

absl::StatusOr<int> Ledger::Join(Placement where, Bytes size, uint64_t inode) {
  SharedState& state = node_->state();
  const StateLock lock(state);
  for (LedgerSlot& slot : UsedSlots(state)) {
    if (slot.inode != inode) continue;
    if (!Matches(slot, where) || slot.ordinal != where.ordinal ||
        slot.size != size.count()) {
      return absl::InvalidArgumentError(
          fmt::format("this memory is not {} on {}", FormatBytes(size),
                      PlacementName(where)));
    }
    if (!HoldLocked(slot).ok())
      DropDeadHolders(state);
    else
      return static_cast<int>(&slot - state.slots);
    if (slot.inode == 0) break;
    SLUICE_RETURN_IF_ERROR(HoldLocked(slot));
    return static_cast<int>(&slot - state.slots);
  }
  return AddLocked(where, size, inode);
}

void Ledger::Leave(int slot_index) {
  SharedState& state = node_->state();
  const StateLock lock(state);
  LedgerSlot& slot = state.slots[slot_index];
  for (LedgerHolder& holder : slot.holders) {
    if (holder.count > 0 && holder.pid == pid_ &&
        holder.start_time == start_time_) {
      --holder.count;
      break;
    }
  }
  DropIfUnheld(slot);
}

absl::StatusOr<MemoryUse> Ledger::Usage(Placement where) {
  SharedState& state = node_->state();
  const StateLock lock(state);
  DropDeadHolders(state);
  return MemoryUse{Total(state, where), UsedLocked(state, where)};
}

}  // namespace sluice::device
