// A rank's resources on the node: its session, its HBM, and its share of host
// memory.
//
// The HBM is one leased region, on sim a hard limit for every tensor of the
// process from Arm on. On a GPU the rank's host memory, and so its limit,
// includes its stage (host_stage.h).
//
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
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/host_stage.h"
#include "kernels/device/driver.h"
#include "planner/stream/attention_kernel.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

class RankMemory {
 public:
  struct Options {
    std::unique_ptr<client::Session> session;  // of this rank
    DeviceIndex gpu;                           // the daemon's index
    // HBM to lease. 0: what other jobs leave of the GPU; but several ranks of
    // this job on one GPU take equal shares of all its memory.
    Bytes hbm;
    int64_t ranks_on_gpu = 1;
    int numa_ranks = 1;  // ranks of this job on the NUMA node
    // This rank's limit. Unset: its share of the host budget.
    std::optional<Bytes> host_limit;
    // The kernel on a GPU; a simulated GPU has only auto.
    stream::AttentionKernel attention = stream::AttentionKernel::kAuto;
    // The model's dtype. On a GPU a bf16 model's fp32 products are rounded to
    // TF32, for the whole process.
    stream::Dtype dtype = stream::Dtype::kFp32;
    // Returns the advice, in the owner's terms, for a lease beyond
    // `host_limit`.
    std::function<std::string(Bytes needed)> beyond_limit;
  };
  // Opens the GPU: on a real one, loads the kernels. Leases nothing yet.
  // Unimplemented: no tensors on the GPU in this build, or a simulated GPU
  // lacks the kernel `attention`. Unavailable: a library is missing.
  static absl::StatusOr<std::unique_ptr<RankMemory>> Open(Options options);
  // Leases the HBM, once. WarmUpCommunicators (below) must come before it.
  // ResourceExhausted: the GPU has too little free memory; the message says
  // what to do.
  absl::Status Lease();
  // Waits for the work on the calling thread's current stream of torch.
  ~RankMemory();

  client::Session& session() { return *options_.session; }
  RegionAllocator& allocator() { return *allocator_; }
  DeviceIndex gpu() const { return options_.gpu; }
  at::Device device() const { return device_; }
  Bytes size() const { return region_->size(); }
  // After Arm only torch's allocations may use the region.
  std::byte* data() const { return region_->data(); }
  std::string KernelName(at::ScalarType type, int64_t head_dim) const;
  // Returns whether this device's kernels round attention's output to the
  // model's dtype before they read it.
  bool rounds_output() const;
  // Makes torch allocate from this memory, and the GPU's libraries allocate
  // their workspaces. Called by the thread that will compute.
  // ResourceExhausted: the workspaces do not fit.
  absl::Status Arm();
  // Returns the driver's handle of torch's current stream. REQUIRES: a GPU.
  absl::StatusOr<device::Stream> ComputeStream();

  HostStage& stage() { return *stage_; }
  // Returns the host memory that the rank holds besides a step's: the stage
  // (none if the CPU has the tensors) and the leases of LeaseFixed.
  Bytes fixed_host() const;
  // Returns the host limit given to Open, less fixed_host.
  std::optional<Bytes> host_limit() const;
  // Returns how much may be leased in addition to fixed_host.
  Bytes host_room() const;
  // Leases host memory until this object ends. Errors are those of LeaseHost.
  absl::StatusOr<std::byte*> LeaseFixed(Bytes size);
  // ResourceExhausted: `size` exceeds the limit, or what the daemon leases.
  absl::StatusOr<std::unique_ptr<client::Region>> LeaseHost(Bytes size);
  // Copies between this HBM and host memory. `timeline` records every copy.
  absl::StatusOr<std::unique_ptr<client::CopyEngine>> StartCopies(
      bool timeline);

 private:
  RankMemory(Options options, at::Device device)
      : options_(std::move(options)), device_(device) {}
  Options options_;
  const at::Device device_;
  std::unique_ptr<Backend> backend_;  // of a GPU
  std::unique_ptr<client::Region> region_;
  // The stage's memory; null: the stage needs none.
  std::unique_ptr<client::Region> pinned_;
  std::vector<std::unique_ptr<client::Region>> fixed_;
  std::optional<HostStage> stage_;
  std::unique_ptr<RegionAllocator> allocator_;
};

// --- workspaces of a GPU's libraries -----------------------------------------
// Torch has a workspace for cuBLAS, and one for cuBLASLt, for each thread and
// stream. The first product allocates it from the lease, and it stays. If that
// product were in a segment, a calibration would record memory that no later
// execution requests.
//
// NCCL's memory, tens to hundreds of MiB per rank, is allocated before the
// lease: it then counts as held outside of leases, and leases and plans leave
// room for it. A later allocation would fail if the pool has no spare memory.
//
// Thread safety: call them on the thread that will compute, on its stream.

// Sets CUBLAS_WORKSPACE_CONFIG, unless the environment has it: 32 MiB, which
// NVIDIA recommends from Hopper on, and with which results repeat from run to
// run. Torch's own choice depends on the GPU. Call it before torch's first
// product on a GPU, and before the process has threads.
void ChooseWorkspaceSize();

// Runs a product of each kind that a step has. Does nothing on the CPU. Throws
// c10::OutOfMemoryError if the lease has no room.
void TakeWorkspaces(c10::Device device);

// Frees the workspaces. Call it before their lease ends, when no product runs
// any more: a later product would use memory that is gone.
void DropWorkspaces(c10::Device device);

// Makes NCCL allocate its communicator and connections, and has the session
// measure that memory for the daemon. Collective over all ranks of `gpus` (from
// ConnectDevice), after RankMemory::Open and before any rank leases. Holds a
// lease of the smallest size while it runs. ResourceExhausted: not even that is
// free. Unavailable: a collective failed.
absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus);

}  // namespace sluice::runtime
