// Counts how much of each place of the simulated node is used. A piece of
// memory counts while a living process has a handle or a mapping of it, as in
// CUDA. The kernel is asked for the holders (outside.h), so processes may die
// at any time. A descriptor in flight does not count until a process has
// received it.
//
// The process that makes the node's memory (Books in node.h) counts the memory
// that it made, and adds what HeldOutside last found in other processes. Any
// other process asks the kernel each time.
//
// Thread safety: thread-safe, and safe between processes of one pid namespace.
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

  std::string MemfdName(Placement where, Bytes size) const;
  // Counts new memory, which this process has made and has open.
  // ResourceExhausted: the place had less than `size` free.
  absl::Status Add(Placement where, Bytes size);
  // Counts memory of an earlier maker as if this ledger had made it.
  // InvalidArgument: `fd` is no memory of this node, place and size.
  // FailedPrecondition: this process has the memory open already.
  absl::Status AddAdopted(const UniqueFd& fd, Placement where, Bytes size);
  // Stops counting memory. Call it before the last handle and mapping close.
  void Leave(const UniqueFd& fd, Placement where, Bytes size);
  // Returns Unimplemented in the process that makes the node's memory, which
  // imports none.
  absl::Status CheckImport() const;

  absl::StatusOr<MemoryUse> Usage(Placement where);
  // Returns, by place, the bytes that living processes hold according to the
  // kernel, without those that this ledger made or adopted; at most the place's
  // size. With own books, Usage and Add count these bytes from then on.
  std::map<Placement, Bytes> HeldOutside();
  NodeMapping& node() const { return *node_; }

 private:
  // One GPU, or the host memory of the node, which all NUMA nodes share.
  using Source = std::pair<Placement::Kind, uint64_t>;
  static Source SourceOf(Placement where);
  // Returns what all processes use according to the kernel.
  Bytes UsedByAll(Placement where) const;

  NodeMapping* const node_;
  const uint64_t maker_;  // this ledger's number in the names of its memory
  // The members below are used with Books::kOwn only.
  Mutex mutex_;
  std::map<Source, Bytes> used_ ABSL_GUARDED_BY(mutex_);
  std::map<Source, Bytes> outside_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> adopted_ ABSL_GUARDED_BY(mutex_);  // inodes
};

}  // namespace sluice::device
