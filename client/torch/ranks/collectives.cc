#include "client/torch/ranks/collectives.h"

#include <c10/util/Logging.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "client/torch/exceptions.h"
#include "client/torch/placement.h"
#include "proto/base/peer_fault.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::runtime {
namespace {

using Options = Collectives::Options;

// A rank not connected after this time counts as never started. Waiting as long
// as for a slow collective would hide that for half an hour.
constexpr double kConnectTimeoutS = 120;

double ConnectTimeoutS(const Options& options) {
  return std::min(options.timeout_s, kConnectTimeoutS);
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

absl::Status CheckSendable(const char* what, const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: the tensor is on {}, and Gloo sends from the CPU",
                    what, tensor.device().str()));
  }
  if (tensor.is_contiguous()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: the tensor is not contiguous", what));
}

// Returns the same memory without ownership. Gloo's worker thread drops its
// tensors some time after it has reported the work as done, and a late free
// would still hold a transient's planned place when the next one asks for it.
at::Tensor Alias(const at::Tensor& tensor) {
  return ViewOf(tensor.data_ptr(), tensor.sizes(), tensor.scalar_type(),
                tensor.device());
}

// Converts counts to bytes, so that Gloo need not know the type.
std::vector<int64_t> InBytes(const std::vector<int64_t>& counts, int64_t size) {
  std::vector<int64_t> bytes(counts);
  for (int64_t& count : bytes) count *= size;
  return bytes;
}

// The collectives of a single process, in which every sum is complete.
class SingleRank final : public Collectives {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::Status AllToAll(const at::Tensor& receive, const std::vector<int64_t>&,
                        const at::Tensor& send,
                        const std::vector<int64_t>&) override {
    if (receive.data_ptr() != send.data_ptr()) receive.copy_(send);
    return absl::OkStatus();
  }
  absl::Status SumAll(at::Tensor&) override { return absl::OkStatus(); }
  absl::Status SumTo(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status Broadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(const std::string&) override {}
};

class GlooRanks final : public Collectives {
 public:
  GlooRanks(const Options& options, c10::intrusive_ptr<c10d::TCPStore> store,
            c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : options_(options), store_(std::move(store)), group_(std::move(group)) {}

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }

  absl::Status AllToAll(const at::Tensor& receive,
                        const std::vector<int64_t>& receive_counts,
                        const at::Tensor& send,
                        const std::vector<int64_t>& send_counts) override {
    SLUICE_RETURN_IF_ERROR(CheckSendable("all-to-all", receive));
    const int64_t size = static_cast<int64_t>(send.element_size());
    return Send("all-to-all", send, [&] {
      at::Tensor to = Alias(receive).view(at::kByte);
      at::Tensor from = Alias(send).view(at::kByte);
      std::vector<int64_t> to_bytes = InBytes(receive_counts, size);
      std::vector<int64_t> from_bytes = InBytes(send_counts, size);
      return group_->alltoall_base(to, from, to_bytes, from_bytes);
    });
  }

  absl::Status SumAll(at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors = {Alias(tensor)};
    return Send("sum over ranks", tensor,
                [&] { return group_->allreduce(tensors); });
  }

  absl::Status SumTo(at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors = {Alias(tensor)};
    c10d::ReduceOptions reduce;
    reduce.rootRank = root;
    return Send("sum to one rank", tensor,
                [&] { return group_->reduce(tensors, reduce); });
  }

  absl::Status Broadcast(at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors = {Alias(tensor)};
    c10d::BroadcastOptions broadcast;
    broadcast.rootRank = root;
    return Send("broadcast", tensor,
                [&] { return group_->broadcast(tensors, broadcast); });
  }

  absl::Status Barrier() override {
    return Run("barrier", Bytes(0), [&] { return group_->barrier(); });
  }

  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(const std::string&) override {}

 private:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  absl::Status Send(const char* what, const at::Tensor& tensor,
                    const Start& start) {
    SLUICE_RETURN_IF_ERROR(CheckSendable(what, tensor));
    return Run(what, SizeOf(tensor), start);
  }
  // Starts one operation and waits. Converts an exception to a Status.
  absl::Status Run(const char* what, Bytes size, const Start& start) {
    const absl::Status status = CatchStatus("", [&] { start()->wait(); });
    if (status.ok()) return status;
    return CausedByPeer(absl::UnavailableError(fmt::format(
        "{} of {} on rank {} of {} failed: probably another rank has ended; "
        "look at its message first (gloo says{})",
        what, FormatBytes(size), options_.rank, options_.world_size,
        std::string(status.message()))));
  }

  const Options options_;
  const c10::intrusive_ptr<c10d::TCPStore> store_;
  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

c10::intrusive_ptr<c10d::TCPStore> OpenStore(const Options& options,
                                             bool server, double timeout_s) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(options.master_port);
  store.isServer = server;
  store.numWorkers = options.world_size;
  store.waitWorkers = false;  // the first collective waits for late ranks
  store.timeout = Milliseconds(timeout_s);
  if (server && options.master_listen_fd >= 0) {
    store.masterListenFd = options.master_listen_fd;
  }
  return c10::make_intrusive<c10d::TCPStore>(options.master_addr, store);
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> MakeGroup(
    const Options& options, const c10::intrusive_ptr<c10d::TCPStore>& store) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(Milliseconds(ConnectTimeoutS(options)));
  const bool one_node =
      options.master_addr == "127.0.0.1" || options.master_addr == "localhost";
  gloo->devices.push_back(one_node ? Gloo::createDeviceForHostname("127.0.0.1")
                                   : Gloo::createDefaultDevice());
  gloo->threads = 1;  // one collective at a time
  auto group =
      c10::make_intrusive<Gloo>(store, options.rank, options.world_size, gloo);
  // This timeout applies once all ranks have connected.
  group->setTimeout(Milliseconds(options.timeout_s));
  return group;
}

// c10d's log prints stack traces for what our Status says.
void QuietC10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = 3;  // fatal only
  }
}

// Opens the module, which stays for the process's life.
absl::StatusOr<decltype(&sluice_connect_nccl)> OpenNcclModule() {
  void* const module = dlopen("libsluice_torch_nccl.so", RTLD_NOW | RTLD_LOCAL);
  void* const entry =
      module != nullptr ? dlsym(module, "sluice_connect_nccl") : nullptr;
  if (entry != nullptr) {
    return reinterpret_cast<decltype(&sluice_connect_nccl)>(entry);
  }
  return absl::UnavailableError(fmt::format(
      "Sluice's module for ranks on GPUs cannot be loaded: {}; a build has it "
      "beside the program, in ../lib, where NCCL's headers were, and no "
      "package has it yet (run one rank without it)",
      dlerror()));
}

absl::Status CheckOptions(const Options& options) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        fmt::format("rank {} of world size {}: the rank must be 0 or more and "
                    "below the world size",
                    options.rank, options.world_size));
  }
  if (options.world_size > 1 &&
      (options.master_port < 1 || options.master_port > 65535)) {
    return absl::InvalidArgumentError(
        fmt::format("master port {}: it must be 1 to 65535 (MASTER_PORT)",
                    options.master_port));
  }
  if (options.world_size > 1 && !options.device.is_cpu()) {
    return absl::UnimplementedError(fmt::format(
        "{} ranks on {}: this is Gloo, which sends from the CPU: connect the "
        "ranks of the host here, and the GPUs by ConnectDevice",
        options.world_size, options.device.str()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Connect(
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(CheckOptions(options));
  if (options.world_size == 1) return std::make_unique<SingleRank>();
  QuietC10d();
  auto connected =
      CatchStatus("", [&]() -> absl::StatusOr<std::unique_ptr<Collectives>> {
        auto store =
            OpenStore(options, options.rank == 0, ConnectTimeoutS(options));
        auto group = MakeGroup(options, store);
        return std::make_unique<GlooRanks>(options, store, group);
      });
  if (connected.ok()) return connected;
  return CausedByPeer(absl::UnavailableError(fmt::format(
      "rank {} of {} could not meet the others at {}:{} within {} s: check "
      "that all ranks were started and the port is free (gloo says{})",
      options.rank, options.world_size, options.master_addr,
      options.master_port, ConnectTimeoutS(options),
      std::string(connected.status().message()))));
}

void DisableNcclWatchdog() {
  for (const char* const name :
       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) {
    setenv(name, "0", /*overwrite=*/0);
  }
}

absl::StatusOr<std::unique_ptr<Collectives>> ConnectDevice(
    const Collectives::Options& options, Collectives* host) {
  if (options.device.is_cpu()) return nullptr;
  SLUICE_ASSIGN_OR_RETURN(const auto connect, OpenNcclModule());
  absl::StatusOr<std::unique_ptr<Collectives>> connected;
  const absl::Status joined = CatchStatus("NCCL's meeting", [&] {
    // Joins the store through which the ranks of `host` have met. The timeout
    // limits how long the first operation waits there for a late rank.
    connect(options, OpenStore(options, /*server=*/false, options.timeout_s),
            host, connected);
  });
  SLUICE_RETURN_IF_ERROR(joined);
  return connected;
}

}  // namespace sluice::runtime
