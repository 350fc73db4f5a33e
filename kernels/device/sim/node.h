// A process's view of a simulated node: the mapped state file.
#pragma once

#include <memory>
#include <string>

#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// Whose word counts for what is used, and for what the node has. Every user's
// processes write to the state file; so the one process that makes the node's
// memory (the daemon) believes nothing of it after it opened the node: neither
// sums nor sizes, nor injected failures and lost GPUs.
enum class Books { kShared, kOwn };

// Maps the state file and holds a shared lock on it, by which CreateSimNode
// knows that the node is in use. Thread safety: thread-safe.
class NodeMapping {
 public:
  // FailedPrecondition: its sizes and counts make no sense.
  static absl::StatusOr<std::unique_ptr<NodeMapping>> Open(
      const std::string& directory, Books books = Books::kShared);
  ~NodeMapping();
  NodeMapping(const NodeMapping&) = delete;
  NodeMapping& operator=(const NodeMapping&) = delete;

  SharedState& state() const { return *state_; }
  // As it was opened.
  const SimConfig& config() const { return config_; }
  Books books() const { return books_; }
  // Of the memfds of its memory (memory_name.h).
  const std::string& name() const { return name_; }

  // ResourceExhausted if an injected failure of `call` is due now.
  absl::Status Enter(const char* call) const;
  bool Has(Placement where) const;
  // InvalidArgument: no such GPU or NUMA node. Unavailable: the GPU is lost.
  absl::Status CheckPlacement(Placement where) const;

 private:
  size_t CountOf(Placement::Kind kind) const;
  NodeMapping(UniqueFd fd, SharedState* state, Books books)
      : fd_(std::move(fd)), state_(state), books_(books) {}

  const UniqueFd fd_;
  SharedState* const state_;
  const Books books_;
  std::string name_;
  SimConfig config_;
};

// "GPU 1", "NUMA node 0".
std::string PlacementName(Placement where);

}  // namespace sluice::device
