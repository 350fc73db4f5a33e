// A rank's place on the node: its session, and its HBM.
//
// The HBM is one leased region; on sim it is a hard limit for every tensor of
// the process from Arm on (runtime::RegionAllocator).
// Thread safety: one thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "client/torch/memory/region_allocator.h"
#include "client/train/launch/launcher.h"
#include "client/train/launch/options.h"

namespace sluice::train {

class RankMemory {
 public:
  // Opens the session on this rank's GPU (gpu_choice.h) and leases the HBM:
  // --hbm, else what other jobs leave of the GPU, shared with the ranks of
  // this job on it. InvalidArgument: a GPU that this build has no tensors on.
  static absl::StatusOr<std::unique_ptr<RankMemory>> Open(
      const RunOptions& options, const RankEnvironment& environment);
  ~RankMemory();

  client::Session& session() { return *session_; }
  runtime::RegionAllocator& allocator() { return *allocator_; }
  DeviceIndex gpu() const { return gpu_; }
  // Torch's, of tensors in this memory.
  at::Device device() const { return allocator_->device(); }
  Bytes size() const { return region_->size(); }
  // The leased region itself; nothing else may use it unless armed.
  std::byte* data() const { return region_->data(); }
  void Arm() { allocator_->Arm(); }

 private:
  RankMemory() = default;

  DeviceIndex gpu_;  // as the daemon counts
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<client::Region> region_;
  std::unique_ptr<runtime::RegionAllocator> allocator_;
};

}  // namespace sluice::train
