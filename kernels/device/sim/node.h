// A process's view of a simulated node: the mapped state file.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/device/sim/clocks.h"
#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// How used memory is counted. kOwn is for the one process that makes the node's
// memory (the daemon): it counts by itself, and ignores changes of the state
// after it opened the node: sizes, lost GPUs, failures injected later.
enum class Books { kShared, kOwn };

// Maps the state file and holds a shared lock on it, which tells CreateSimNode
// that the node is in use. Thread safety: thread-safe.
class NodeMapping {
 public:
  // `clocks` are those of its links, from MakeSimClocks. Without them the
  // owner's processes share the clocks in the state, and another user's process
  // has its own. FailedPrecondition: the node's sizes and counts are
  // inconsistent.
  static absl::StatusOr<std::unique_ptr<NodeMapping>> Open(
      const std::string& directory, Books books = Books::kShared,
      const UniqueFd& clocks = UniqueFd());
  NodeMapping(const NodeMapping&) = delete;
  NodeMapping& operator=(const NodeMapping&) = delete;

  const SharedState& state() const { return *state_; }
  // PermissionDenied: this process does not belong to the node's owner.
  absl::StatusOr<SharedState*> ForWriting() const;
  SharedClocks& clocks() const {
    return clocks_ != nullptr ? *clocks_ : state_->clocks;
  }
  // While the descriptor lives, no other process makes memory of shared books.
  // PermissionDenied as above. With own books it locks nothing.
  absl::StatusOr<UniqueFd> LockMaking() const;
  // The configuration when the node was opened.
  const SimConfig& config() const { return config_; }
  Books books() const { return books_; }
  // NODE in the names of its memory's memfds (memory_name.h).
  const std::string& name() const { return name_; }

  // ResourceExhausted if an injected failure of `call` is due now.
  absl::Status Enter(const char* call) const;
  bool Has(Placement where) const;
  // InvalidArgument: no such GPU or NUMA node. Unavailable: the GPU is lost.
  absl::Status CheckPlacement(Placement where) const;

 private:
  size_t CountOf(Placement::Kind kind) const;
  // Counts an injected failure down, in its own books or the shared ones.
  void NoteMet(const SharedFailure& failure) const;
  NodeMapping(UniqueFd fd, Mapped<SharedState> state, bool writable,
              Books books)
      : fd_(std::move(fd)),
        state_(std::move(state)),
        writable_(writable),
        books_(books) {}

  const UniqueFd fd_;
  const Mapped<SharedState> state_;
  const bool writable_;
  const Books books_;
  Mapped<SharedClocks> clocks_;  // null: those in the state
  std::string name_;
  SimConfig config_;
  // Own books: the failures that were pending when the node was opened.
  mutable std::array<SharedFailure, kSimMaxFailures> failures_{};
};

// "GPU 1", "NUMA node 0".
std::string PlacementName(Placement where);

}  // namespace sluice::device
