// How much of each place of the simulated node is used.
//
// A piece of memory counts while a living process has a handle or a mapping of
// it, as in CUDA. The kernel tells (outside.h), also when a process dies at any
// moment. A descriptor in flight (exported, released, not yet imported) is not
// counted until a process has received it.
//
// The process that makes the node's memory (node.h, Books) counts what it made
// by itself, and what others hold as HeldOutside found it last. Any other asks
// the kernel each time.
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

  // For the memfd of what it makes.
  std::string MemfdName(Placement where, Bytes size) const;
  // Memory was made, and this process has it open. ResourceExhausted: the place
  // had less than `size` left.
  absl::Status Add(Placement where, Bytes size);
  // Memory that an earlier maker made is this one's. InvalidArgument: it is no
  // memory of this node, place and size. FailedPrecondition: it is open here.
  absl::Status AddAdopted(const UniqueFd& fd, Placement where, Bytes size);
  // Its last handle and mapping here are going.
  void Leave(const UniqueFd& fd, Placement where, Bytes size);
  // Unimplemented: the process that makes the node's memory imports none.
  absl::Status CheckImport() const;

  absl::StatusOr<MemoryUse> Usage(Placement where);
  // What living processes hold by the word of the kernel, though this ledger
  // has not made it; no more of a place than it has.
  std::map<Placement, Bytes> HeldOutside();
  NodeMapping& node() const { return *node_; }

 private:
  // What memory is drawn from: a GPU's, or the whole node's host memory (all
  // NUMA nodes share it).
  using Source = std::pair<Placement::Kind, uint64_t>;
  static Source SourceOf(Placement where);
  // By the kernel, of all processes, this one included.
  Bytes UsedByAll(Placement where) const;

  NodeMapping* const node_;
  const uint64_t maker_;  // in the names of its memory
  // Books of its own.
  Mutex mutex_;
  std::map<Source, Bytes> used_ ABSL_GUARDED_BY(mutex_);
  std::map<Source, Bytes> outside_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> adopted_ ABSL_GUARDED_BY(mutex_);  // inodes
};

}  // namespace sluice::device
