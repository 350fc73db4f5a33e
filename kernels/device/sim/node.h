// A process's view of a simulated node, through the mapped state file.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// How used memory is counted. With kShared a process asks the kernel. kOwn is
// for the one process that makes the node's memory (the daemon): it keeps the
// count, and ignores later changes of sizes, lost GPUs and failures in the
// state.
enum class Books { kShared, kOwn };

// Maps the state file and holds a shared lock on it, which shows CreateSimNode
// that the node is in use. Thread safety: thread-safe.
class NodeMapping {
 public:
  // `clocks` come from MakeSimClocks. Without them the owner's processes share
  // the state's clocks, and each process of another user has private clocks.
  // FailedPrecondition: the state is damaged or of another version.
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
  // While the returned descriptor is open, no other process with shared books
  // makes memory. Own books lock nothing. PermissionDenied: see ForWriting.
  absl::StatusOr<UniqueFd> LockMaking() const;
  // Returns the configuration as it was when the node was opened.
  const SimConfig& config() const { return config_; }
  Books books() const { return books_; }
  // Returns the NODE part of the names of the node's memory (memory_name.h).
  const std::string& name() const { return name_; }

  // Counts a call. ResourceExhausted: a failure was injected into this call.
  absl::Status Enter(const char* call) const;
  bool Has(Placement where) const;
  // InvalidArgument: no such place. Unavailable: the GPU is lost.
  absl::Status CheckPlacement(Placement where) const;

 private:
  size_t CountOf(Placement::Kind kind) const;
  // Records that an injected failure has occurred.
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
  Mapped<SharedClocks> clocks_;  // null if the state's clocks are used
  std::string name_;
  SimConfig config_;
  // With own books: the failures that were pending when the node was opened.
  mutable std::array<SharedFailure, kSimMaxFailures> failures_{};
};

// Formats "GPU 1", "NUMA node 0".
std::string PlacementName(Placement where);

}  // namespace sluice::device
