// A process's view of a simulated node: the mapped state file.
#pragma once

#include <memory>
#include <string>

#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"
#include "proto/base/unique_fd.h"

namespace sluice::device {

// Maps the state file and holds a shared lock on it, by which CreateSimNode
// knows that the node is in use. Thread safety: thread-safe.
class NodeMapping {
 public:
  static absl::StatusOr<std::unique_ptr<NodeMapping>> Open(
      const std::string& directory);
  ~NodeMapping();
  NodeMapping(const NodeMapping&) = delete;
  NodeMapping& operator=(const NodeMapping&) = delete;

  SharedState& state() const { return *state_; }
  SimConfig config() const;

  // ResourceExhausted if an injected failure of `call` is due now.
  absl::Status Enter(const char* call) const;
  // InvalidArgument: no such GPU or NUMA node. Unavailable: the GPU is lost.
  absl::Status CheckPlacement(Placement where) const;

 private:
  NodeMapping(UniqueFd fd, SharedState* state)
      : fd_(std::move(fd)), state_(state) {}

  const UniqueFd fd_;
  SharedState* const state_;
};

// "GPU 1", "NUMA node 0".
std::string PlacementName(Placement where);

}  // namespace sluice::device
