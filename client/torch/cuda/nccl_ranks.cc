// Collectives over NCCL. client/torch/ranks/collectives.h has the only export.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "client/torch/ranks/collectives.h"
#include "proto/base/mutex.h"
#include "proto/base/peer_fault.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::runtime {
namespace {

using Group = c10d::ProcessGroupNCCL;

class NcclRanks final : public Collectives {
 public:
  NcclRanks(const Options& options, c10::intrusive_ptr<Group> group,
            Collectives* host)
      : options_(options), group_(std::move(group)), host_(host) {}
  // Shuts down here, because c10d's destructor aborts, which may break messages
  // that another rank is still receiving. Either all ranks shut down or none,
  // because a finalized communicator waits for the others.
  ~NcclRanks() override {
    // Callers may unmap begun operations' memory once the stream is idle.
    AwaitBegun().IgnoreError();
    {
      const MutexLock lock(mutex_);
      if (!aborted_.ok()) return;
    }
    CatchStatus("", [&] { group_->shutdown(); }).IgnoreError();
  }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }

  absl::Status AllToAll(const at::Tensor& receive,
                        const std::vector<int64_t>& receive_counts,
                        const at::Tensor& send,
                        const std::vector<int64_t>& send_counts) override {
    if (send.is_cpu()) {
      return host_->AllToAll(receive, receive_counts, send, send_counts);
    }
    SLUICE_RETURN_IF_ERROR(CheckSendable("all-to-all", receive));
    return Enqueue("all-to-all", send, [&] {
      at::Tensor to = receive;
      at::Tensor from = send;
      std::vector<int64_t> to_counts = receive_counts;
      std::vector<int64_t> from_counts = send_counts;
      return group_->alltoall_base(to, from, to_counts, from_counts);
    });
  }

  absl::Status SumAll(at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->SumAll(tensor);
    std::vector<at::Tensor> tensors = {tensor};
    return Enqueue("sum over ranks", tensor,
                   [&] { return group_->allreduce(tensors); });
  }

  absl::Status SumTo(at::Tensor& tensor, int root) override {
    if (tensor.is_cpu()) return host_->SumTo(tensor, root);
    std::vector<at::Tensor> tensors = {tensor};
    c10d::ReduceOptions reduce;
    reduce.rootRank = root;
    return Enqueue("sum to one rank", tensor,
                   [&] { return group_->reduce(tensors, reduce); });
  }

  absl::Status Broadcast(at::Tensor& tensor, int root) override {
    if (tensor.is_cpu()) return host_->Broadcast(tensor, root);
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions broadcast;
    broadcast.rootRank = root;
    return Enqueue("broadcast", tensor,
                   [&] { return group_->broadcast(tensors, broadcast); });
  }

  // NCCL works in place: the result is this rank's part of `tensor`.
  absl::Status BeginSumScatter(at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->BeginSumScatter(tensor);
    at::Tensor own = OwnPart(tensor);
    return Begin("reduce-scatter", tensor,
                 [&] { return group_->_reduce_scatter_base(own, tensor); });
  }

  absl::Status BeginGather(at::Tensor& tensor) override {
    if (tensor.is_cpu()) return host_->BeginGather(tensor);
    at::Tensor own = OwnPart(tensor);
    return Begin("all-gather", tensor,
                 [&] { return group_->_allgather_base(tensor, own); });
  }

  // The stream waits for all begun operations, even if one has failed.
  absl::Status AwaitBegun() override {
    absl::Status status = host_->AwaitBegun();
    for (const auto& work : std::exchange(begun_, {})) {
      status.Update(CatchStatus("c10d", [&] { work->wait(); }));
    }
    return status;
  }

  absl::Status Barrier() override { return host_->Barrier(); }
  void Abort(const std::string& why) override {
    {
      const MutexLock lock(mutex_);
      if (!aborted_.ok()) return;
      aborted_ = CausedByPeer(absl::UnavailableError(why));
    }
    // Ends running operations. An exception only says that they had ended.
    CatchStatus("", [&] { group_->abort(); }).IgnoreError();
  }

  // Queries the communicator under the lock, because Abort takes the lock
  // before it frees the communicator.
  absl::Status Check() override {
    const MutexLock lock(mutex_);
    if (!aborted_.ok() || !connected_) return aborted_;
    // c10d uses the communicator of the calling thread's GPU.
    const c10::cuda::CUDAGuard guard(options_.device);
    return CatchStatus("NCCL's communicator", [&]() -> absl::Status {
      const auto communicator =
          reinterpret_cast<ncclComm_t>(group_->getCommPtr());
      ncclResult_t error = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(communicator, &error);
      // ncclInProgress comes from a nonblocking communicator, which the user's
      // environment may request (TORCH_NCCL_USE_COMM_NONBLOCKING).
      if (asked == ncclSuccess &&
          (error == ncclSuccess || error == ncclInProgress)) {
        return absl::OkStatus();
      }
      return Failed("collectives",
                    fmt::format("NCCL: {}", ncclGetLastError(communicator)));
    });
  }

 private:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;

  absl::Status Begin(const char* what, const at::Tensor& tensor,
                     const Start& start) {
    return Enqueue(
        what, tensor, [&] { return begun_.emplace_back(start()); },
        /*waits=*/false);
  }

  // With `waits`, the current stream waits for the operation.
  absl::Status Enqueue(const char* what, const at::Tensor& tensor,
                       const Start& start, bool waits = true) {
    SLUICE_RETURN_IF_ERROR(CheckSendable(what, tensor));
    SLUICE_RETURN_IF_ERROR(Check());
    const absl::Status issued = CatchStatus("c10d", [&] {
      const auto work = start();
      if (waits) work->wait();
    });
    if (issued.ok()) {
      const MutexLock lock(mutex_);
      connected_ = true;
      return issued;
    }
    // An abort in the meantime explains any error of NCCL.
    SLUICE_RETURN_IF_ERROR(Check());
    return Failed(fmt::format("{} of {}", what, FormatBytes(SizeOf(tensor))),
                  std::string(issued.message()));
  }

  absl::Status CheckSendable(const char* what, const at::Tensor& tensor) const {
    if (tensor.device() != options_.device) {
      return absl::InvalidArgumentError(
          fmt::format("{}: the tensor is on {}, and this rank's GPU is {}",
                      what, tensor.device().str(), options_.device.str()));
    }
    if (tensor.is_contiguous()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("{}: the tensor is not contiguous", what));
  }

  at::Tensor OwnPart(const at::Tensor& tensor) const {
    const int64_t size = tensor.numel() / options_.world_size;
    return tensor.narrow(0, options_.rank * size, size);
  }

  // Returns this rank's error if its GPU is lost, else one marked as a peer's:
  // most likely another rank failed. NCCL reports a lost GPU only as "unhandled
  // cuda error", but any call to the driver shows the loss.
  absl::Status Failed(const std::string& what, const std::string& says) const {
    const absl::Status gpu = CatchStatus("this rank's GPU", [&] {
      c10::cuda::getCurrentCUDAStream(options_.device.index()).query();
    });
    const std::string failed = fmt::format("{} on rank {} of {} failed", what,
                                           options_.rank, options_.world_size);
    if (!gpu.ok()) {
      return absl::InternalError(
          fmt::format("{}: {} ({})", failed, std::string(gpu.message()), says));
    }
    return CausedByPeer(absl::UnavailableError(
        fmt::format("{}: probably another rank has ended; look at its message "
                    "first ({})",
                    failed, says)));
  }

  const Options options_;
  const c10::intrusive_ptr<Group> group_;
  Collectives* const host_;
  std::vector<c10::intrusive_ptr<c10d::Work>> begun_;
  Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  // Set once the first operation has made the communicator.
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<Collectives>> ConnectNccl(
    const Collectives::Options& options,
    const c10::intrusive_ptr<c10d::Store>& store, Collectives* host) {
  if (!options.device.is_cuda() || !options.device.has_index()) {
    return absl::InvalidArgumentError(
        fmt::format("NCCL on {}: name a GPU (cuda:0)", options.device.str()));
  }
  return CatchStatus(
      "NCCL", [&]() -> absl::StatusOr<std::unique_ptr<Collectives>> {
        auto own = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
        const auto nccl = Group::Options::create();
        nccl->timeout = std::chrono::milliseconds(
            static_cast<int64_t>(options.timeout_s * 1000));
        auto group = c10::make_intrusive<Group>(own, options.rank,
                                                options.world_size, nccl);
        return std::make_unique<NcclRanks>(options, std::move(group), host);
      });
}

}  // namespace
}  // namespace sluice::runtime

void sluice_connect_nccl(
    const sluice::runtime::Collectives::Options& options,
    const c10::intrusive_ptr<c10d::Store>& store,
    sluice::runtime::Collectives* host,
    absl::StatusOr<std::unique_ptr<sluice::runtime::Collectives>>& connected) {
  connected = sluice::runtime::ConnectNccl(options, store, host);
}
