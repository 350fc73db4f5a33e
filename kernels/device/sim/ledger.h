// Counts how much of each place of the simulated node is used.
//
// A piece of memory counts while a living process has a handle or a mapping of
// it, as in CUDA. The kernel is asked for that (outside.h), so it is right
// whenever a process dies. A descriptor in flight (exported, released, not yet
// imported) counts once a process has received it.
//
// The process that makes the node's memory (node.h, Books) counts its own
// memory itself, and adds what HeldOutside last found in other processes. Any
// other process asks the kernel each time.
//
// Processes of one node must share a pid namespace.
// Thread safety: thread-safe, and safe between processes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/node.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

class Ledger {
 public:
  explicit Ledger(NodeMapping* node);

  // The name of the memfd of new memory.
  std::string MemfdName(Placement where, Bytes size) const;
  // Counts memory that was made and is open in this process. ResourceExhausted:
  // the place had less than `size` left.
  absl::Status Add(Placement where, Bytes size);
  // Takes over memory that an earlier maker made. InvalidArgument: it is no
  // memory of this node, place and size. FailedPrecondition: it is open here
  // already.
  absl::Status AddAdopted(const UniqueFd& fd, Placement where, Bytes size);
  // Called before the last handle and mapping in this process go.
  void Leave(const UniqueFd& fd, Placement where, Bytes size);
  // Unimplemented: the process that makes the node's memory imports none.
  absl::Status CheckImport() const;

  absl::StatusOr<MemoryUse> Usage(Placement where);
  // What the kernel says that living processes hold and this ledger has not
  // made; at most the size of each place.
  std::map<Placement, Bytes> HeldOutside();
  NodeMapping& node() const { return *node_; }

 private:
  // A source of memory: one GPU, or the host memory of the whole node, which
  // all NUMA nodes share.
  using Source = std::pair<Placement::Kind, uint64_t>;
  static Source SourceOf(Placement where);
  // What the kernel says that all processes use, this one included.
  Bytes UsedByAll(Placement where) const;

  NodeMapping* const node_;
  const uint64_t maker_;  // in the names of its memory
  // For Books::kOwn only.
  Mutex mutex_;
  std::map<Source, Bytes> used_ ABSL_GUARDED_BY(mutex_);
  std::map<Source, Bytes> outside_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> adopted_ ABSL_GUARDED_BY(mutex_);  // inodes
};

}  // namespace sluice::device
