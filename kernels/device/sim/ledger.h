// Who holds which physical memory of the simulated node, and so how much of
// each place is used.
//
// A piece of memory counts while a living process has a handle or a mapping of
// it, as in CUDA. A process that died is noticed when a place looks full or
// its use is asked for: its pid no longer exists or has another start time. A
// descriptor in flight (exported, released, not yet imported) is not counted
// until somebody imports it: sim cannot see it.
//
// The process that makes the memory keeps books of its own (node.h, Books): it
// neither reads the shared ones again nor locks them, because whoever may write
// to them may hold the lock for ever, and a robust mutex in such memory leads
// where they say. Its memory is not in the shared books, whoever imports it;
// what others hold that it did not make, it asks the kernel (outside.h).
//
// Processes of one node must share a pid namespace.
// Thread safety: thread-safe, and safe between processes, which may die at
// any moment.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/node.h"
#include "proto/base/mutex.h"

namespace sluice::device {

class Ledger {
 public:
  explicit Ledger(NodeMapping* node);

  // This process becomes the holder of new memory. ResourceExhausted: the
  // place has less than `size` left.
  absl::StatusOr<int> Add(Placement where, Bytes size, uint64_t inode);
  // ... another holder of memory that exists. Nothing where the shared books do
  // not know it: who made it keeps books of its own, or died with all holders.
  // InvalidArgument: it is of another place or size.
  absl::StatusOr<std::optional<int>> Join(Placement where, Bytes size,
                                          uint64_t inode);
  // Undoes one Add or Join.
  void Leave(int slot);

  absl::StatusOr<MemoryUse> Usage(Placement where);
  // What living processes hold by the word of the kernel (outside.h), though
  // this ledger has not made it; no more of a place than it has. Own books
  // count it as used from then on.
  std::map<Placement, Bytes> HeldOutside();
  // For the memfd of what it makes.
  std::string MemfdName(Placement where, Bytes size) const;

 private:
  // What memory is drawn from: a GPU's, or the whole node's host memory (all
  // NUMA nodes share it).
  using Source = std::pair<Placement::Kind, uint64_t>;
  struct Piece {
    Source from;
    Bytes size;
  };
  static Source SourceOf(Placement where);
  absl::StatusOr<int> AddOwn(Placement where, Bytes size);
  absl::StatusOr<int> AddLocked(Placement where, Bytes size, uint64_t inode);
  absl::Status HoldLocked(LedgerSlot& slot);

  NodeMapping* const node_;
  const int32_t pid_;
  const int64_t start_time_;
  const uint64_t maker_;  // in the names of its memory
  // Books of its own.
  Mutex mutex_;
  std::map<int, Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  std::map<Source, Bytes> used_ ABSL_GUARDED_BY(mutex_);
  std::map<Source, Bytes> outside_ ABSL_GUARDED_BY(mutex_);
  int next_piece_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Clock ticks since boot when `pid` started; 0 if there is no such process,
// or it is a zombie.
int64_t ProcessStartTime(int32_t pid);

}  // namespace sluice::device
