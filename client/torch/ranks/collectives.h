// The collectives that the pipelines need, by c10d: over Gloo for the CPU's
// tensors (the host's, and those in sim's HBM), over NCCL for a GPU's. A module
// that is opened at run time has NCCL, so a program starts without it.
//
// A failed collective (a peer died) throws nothing across targets: its
// absl::Status names the operation, and the trainer ends the run with it.
// Thread safety: one thread, except Abort.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace c10d {
class Store;
}

namespace sluice::runtime {

class Collectives {
 public:
  struct Options {
    at::Device device;  // of tensors that are not the host's
    int rank = 0;
    int world_size = 1;
    std::string master_addr = "127.0.0.1";
    int master_port = 29500;
    double timeout_s = 1800;
    // A socket that already listens on master_port, which rank 0 takes over, so
    // that a launcher can choose a free port without a race. -1: none.
    int master_listen_fd = -1;
  };
  // Connects the ranks. World size 1 needs no network and no store.
  // Unimplemented: several ranks on a device that Gloo does not support.
  static absl::StatusOr<std::unique_ptr<Collectives>> Connect(
      const Options& options);
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // All tensors must be contiguous, and on the device or the host. Every rank
  // makes the same calls in the same order.

  // Runs a flat all-to-all. `send` and `receive` are contiguous 1-D tensors of
  // one type. Counts are in elements, one per rank; uneven and empty are fine.
  virtual absl::Status AllToAll(const at::Tensor& receive,
                                const std::vector<int64_t>& receive_counts,
                                const at::Tensor& send,
                                const std::vector<int64_t>& send_counts) = 0;
  virtual absl::Status SumAll(at::Tensor& tensor) = 0;  // in place
  // Sums into root's `tensor`; on other ranks `tensor` is undefined afterwards.
  virtual absl::Status SumTo(at::Tensor& tensor, int root) = 0;
  virtual absl::Status Broadcast(at::Tensor& tensor, int root) = 0;

  // Operations of BeginSumScatter and BeginGather end with the next AwaitBegun;
  // on a GPU they overlap with compute until then. `tensor` has one part per
  // rank, all of one size, and outlives the operation. This default runs the
  // operations at once, rank by rank. The destructor makes the current stream
  // wait for operations that still run.
  //
  // BeginSumScatter: each rank gets the sum of its own part; the other parts
  // are undefined afterwards. BeginGather: each rank gets all ranks' parts.
  virtual absl::Status BeginSumScatter(at::Tensor& tensor) {
    return EachPart(tensor, &Collectives::SumTo);
  }
  virtual absl::Status BeginGather(at::Tensor& tensor) {
    return EachPart(tensor, &Collectives::Broadcast);
  }
  virtual absl::Status AwaitBegun() { return absl::OkStatus(); }

  virtual absl::Status Barrier() = 0;

  // Returns whether the operations so far succeeded. On a GPU their own status
  // only says that they were issued, so call Check after waiting for the
  // stream.
  virtual absl::Status Check() = 0;
  // Ends operations that wait for a dead rank; later operations and Check
  // return Unavailable with `why`, marked (proto/base/peer_fault.h). Call it
  // when another rank has died. Thread-safe. Over Gloo it does nothing, because
  // the closed connection of a dead peer ends the operations.
  virtual void Abort(const std::string& why) = 0;

 private:
  // Inline, as its callers are: libsluice_torch_nccl.so derives a class from
  // Collectives, and the program exports no symbols of Collectives.
  absl::Status EachPart(at::Tensor& tensor,
                        absl::Status (Collectives::*call)(at::Tensor&, int)) {
    const int64_t size = tensor.numel() / world_size();
    for (int rank = 0; rank < world_size(); ++rank) {
      at::Tensor part = tensor.narrow(0, rank * size, size);
      const absl::Status status = (this->*call)(part, rank);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

// Switches off c10d's watchdog and monitor, unless the environment sets them:
// they would end the process if an operation fails, the GPU is lost, or the
// watchdog hangs. Here a daemon and Abort report a rank's end, and the process
// then says why it ends. Call it before ConnectDevice and before the process
// has threads, which may read the environment.
void DisableNcclWatchdog();

// Connects the ranks of `host` (from Collectives::Connect with the same
// options, or a wrapper of it), which outlives the result and carries host
// tensors. Returns null if `options.device` is the CPU: `host` suffices then.
// Unavailable: no module, or NCCL did not start; with the reason. The ranks
// must agree on the result, because a rank that connected alone would wait.
absl::StatusOr<std::unique_ptr<Collectives>> ConnectDevice(
    const Collectives::Options& options, Collectives* host);

}  // namespace sluice::runtime

// Connects the ranks. `options.device` is this rank's GPU. CPU tensors travel
// by `host`, which has the same ranks and outlives the result. The first
// operation makes the communicator. client/torch/cuda/README.md has the rules:
// Check() after a wait for the stream, one thread that issues, Abort() if a
// peer dies, all ranks meet before they destroy their objects.
extern "C" void sluice_connect_nccl(
    const sluice::runtime::Collectives::Options& options,
    const c10::intrusive_ptr<c10d::Store>& store,
    sluice::runtime::Collectives* host,
    absl::StatusOr<std::unique_ptr<sluice::runtime::Collectives>>& connected);
