// The layout of a simulated node's state file, mapped by every process that
// uses the node.
//
// Any process may die at any instruction, so nothing here can be left locked
// or half done for good:
//   links, failures, lost flags   plain atomics
//   the ledger                    a robust mutex; a slot counts from the
//                                 moment its inode is set; the sums are made
//                                 anew after a holder of the mutex died
//
// All of it is zero-initialised, and allocated when the node is made.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace sluice::device {

inline constexpr uint64_t kSimMagic = 0x32'4d49'5343'4c53;  // "SLCSIM2"
inline constexpr int kSimMaxGpus = 64;
inline constexpr int kSimMaxLinks = 64;
inline constexpr int kSimMaxNuma = 16;
inline constexpr int kSimMaxFailures = 32;
inline constexpr int kSimNameLength = 32;
inline constexpr int kLedgerSlots = 16384;  // 1 TiB in extents of 64 MiB
inline constexpr int kLedgerHolders = 10;   // 8 ranks, the daemon, its keeper

struct SharedLink {
  char name[kSimNameLength];
  // Indexed by CopyDirection. 0: not throttled.
  std::atomic<double> bytes_per_second[2];
  // CLOCK_MONOTONIC; the link is taken until then.
  alignas(64) std::atomic<int64_t> next_free_ns[2];
};

struct SharedGpu {
  int64_t memory;
  uint32_t link;
  uint32_t numa;
  std::atomic<uint32_t> lost;
};

struct SharedFailure {
  char call[kSimNameLength];
  std::atomic<int64_t> remaining;  // 0: this entry is free
};

// A process that holds a handle or a mapping of a piece of memory. Pids are
// reused; with the start time they are not.
struct LedgerHolder {
  int64_t start_time;  // clock ticks since boot, /proc/PID/stat field 22
  int32_t pid;
  int32_t count;  // handles' records in that process; 0: entry is free
};

// One piece of physical memory.
struct LedgerSlot {
  int64_t size;
  uint32_t kind;  // Placement::Kind
  uint32_t ordinal;
  LedgerHolder holders[kLedgerHolders];
};

struct SharedState {
  uint64_t magic;
  uint64_t size;  // of this struct: a build with another layout is refused
  int64_t granularity;
  int64_t host_memory;
  uint32_t numa_nodes;
  uint32_t gpu_count;
  uint32_t link_count;
  SharedGpu gpus[kSimMaxGpus];
  SharedLink links[kSimMaxLinks];
  std::atomic<uint32_t> failures_armed;  // look at `failures` only if not 0
  SharedFailure failures[kSimMaxFailures];

  pthread_mutex_t mutex;  // robust, process-shared: guards what follows
  int64_t host_used;      // sums over the slots in use
  int64_t gpu_used[kSimMaxGpus];
  uint32_t slots_high_water;
  // Of the slot's memfd; 0: the slot is free. Apart from the slots, so that
  // looking for one reads 8 bytes a slot.
  uint64_t inodes[kLedgerSlots];
  LedgerSlot slots[kLedgerSlots];
};

static_assert(std::atomic<double>::is_always_lock_free);
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace sluice::device
