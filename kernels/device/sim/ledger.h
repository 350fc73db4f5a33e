// Who holds which physical memory of the simulated node, and so how much of
// each place is used.
//
// A piece of memory counts while a living process has a handle or a mapping of
// it, as in CUDA. A process that died is noticed when a place looks full or
// its use is asked for: its pid no longer exists or has another start time. A
// descriptor in flight (exported, released, not yet imported) is not counted
// until somebody imports it: sim cannot see it.
//
// Processes of one node must share a pid namespace.
// Thread safety: thread-safe, and safe between processes, which may die at
// any moment.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/node.h"

namespace sluice::device {

class Ledger {
 public:
  explicit Ledger(NodeMapping* node);

  // This process becomes the holder of new memory. ResourceExhausted: the
  // place has less than `size` left.
  absl::StatusOr<int> Add(Placement where, Bytes size, uint64_t inode);
  // ... another holder of memory that exists (or whose holders all died: then
  // as Add). InvalidArgument: it is of another place or size.
  absl::StatusOr<int> Join(Placement where, Bytes size, uint64_t inode);
  // Undoes one Add or Join.
  void Leave(int slot);

  absl::StatusOr<MemoryUse> Usage(Placement where);

 private:
  absl::StatusOr<int> AddLocked(Placement where, Bytes size, uint64_t inode);
  absl::Status HoldLocked(LedgerSlot& slot);

  NodeMapping* const node_;
  const int32_t pid_;
  const int64_t start_time_;
};

// Clock ticks since boot when `pid` started; 0 if there is no such process,
// or it is a zombie.
int64_t ProcessStartTime(int32_t pid);

}  // namespace sluice::device
