// A rank's place on the node: its session, its HBM, and its share of host
// memory.
//
// The HBM is one leased region; on sim it is a hard limit for every tensor of
// the process from Arm on (RegionAllocator). On a GPU a rank's host memory
// begins with its stage (host_stage.h), which its limit has to have room for.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/session/session.h"
#include "client/torch/backend/backend.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/run/host_stage.h"
#include "kernels/device/driver.h"
#include "planner/stream/attention_kernel.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

class RankMemory {
 public:
  struct Options {
    std::unique_ptr<client::Session> session;  // of this rank
    DeviceIndex gpu;                           // as the daemon counts
    Bytes hbm;  // to lease; 0: what other jobs leave of the GPU, shared with
    int64_t ranks_on_gpu = 1;  // so many ranks of this job there
    int numa_ranks = 1;        // of this job, on the GPU's NUMA node
    // This rank's; none: its share of what the budgets allow.
    std::optional<Bytes> host_limit;
    // On a GPU; a simulated one has but auto.
    stream::AttentionKernel attention = stream::AttentionKernel::kAuto;
    // The model's. On a GPU, what a bf16 model multiplies in fp32 is rounded to
    // TF32, for the whole process: see AllowTf32ForBf16.
    stream::Dtype dtype = stream::Dtype::kFp32;
    // What to do where a lease needs more than that, in its owner's words.
    std::function<std::string(Bytes needed)> beyond_limit;
  };
  // On a GPU loads what computes there; nothing is leased yet. Unimplemented: a
  // GPU that this build has no tensors on, or a simulated one that was asked
  // for a kernel of real ones. Unavailable: a library is missing.
  static absl::StatusOr<std::unique_ptr<RankMemory>> Open(Options options);
  // Leases the HBM, once; before it there are but the session and the device.
  // Between Open and this is the time for what libraries take of a GPU beside a
  // lease (communicators.h). ResourceExhausted: no such memory, in one line
  // that says what to do.
  absl::Status Lease();
  // Waits for what is issued on the calling thread's stream of torch.
  ~RankMemory();

  client::Session& session() { return *options_.session; }
  RegionAllocator& allocator() { return *allocator_; }
  DeviceIndex gpu() const { return options_.gpu; }
  // Torch's, of tensors in this memory.
  at::Device device() const { return device_; }
  Bytes size() const { return region_->size(); }
  // The leased region itself; nothing else may use it unless armed.
  std::byte* data() const { return region_->data(); }
  // The name, for reports, of what computes attention of this dtype and head
  // size.
  std::string KernelName(at::ScalarType type, int64_t head_dim) const;
  // They read attention's output as rounded to the model's dtype.
  bool rounds_output() const;
  // From now on torch's allocations come from here; the first are what a GPU's
  // libraries keep (workspaces.h), for which ResourceExhausted: no room. By the
  // thread that will compute.
  absl::Status Arm();
  // The one that torch enqueues on, as the driver knows it. REQUIRES: a GPU.
  absl::StatusOr<device::Stream> ComputeStream();

  // How the host's bytes reach this memory.
  HostStage& stage() { return *stage_; }
  // What the rank holds of host memory beside a step's: the stage's (none where
  // the CPU has the tensors) and what LeaseFixed leased.
  Bytes fixed_host() const;
  // The host limit that it was opened with, without fixed_host.
  std::optional<Bytes> host_limit() const;
  // What all leases of host memory may take beside fixed_host.
  Bytes host_room() const;
  // Host memory that this holds to its end, beside every step's. Errors as of
  // LeaseHost.
  absl::StatusOr<std::byte*> LeaseFixed(Bytes size);
  // ResourceExhausted: more than the limit, or than the daemon leases.
  absl::StatusOr<std::unique_ptr<client::Region>> LeaseHost(Bytes size);
  // Between this HBM and host memory. `timeline`: keeps a record of every
  // copy.
  absl::StatusOr<std::unique_ptr<client::CopyEngine>> StartCopies(
      bool timeline);

 private:
  RankMemory(Options options, at::Device device)
      : options_(std::move(options)), device_(device) {}
  // Where the device's tensors are not the CPU's.
  absl::Status LeaseStage();

  Options options_;
  const at::Device device_;
  std::unique_ptr<Backend> backend_;  // of a GPU
  std::unique_ptr<client::Region> region_;
  std::unique_ptr<client::Region> pinned_;  // the stage's; null: it needs none
  std::vector<std::unique_ptr<client::Region>> fixed_;
  std::optional<HostStage> stage_;
  std::unique_ptr<RegionAllocator> allocator_;
};

}  // namespace sluice::runtime
