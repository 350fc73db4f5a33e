#include "client/torch/run/rank_memory.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "client/torch/backend/cuda_backend.h"
#include "client/torch/exceptions.h"
#include "client/torch/memory/torch_cuda.h"
#include "client/torch/placement.h"
#include "client/torch/run/agreement.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

const Backend& OwnBackend(at::Device device) {
  const auto backend = FindBackend(device);
  SLUICE_CHECK(backend.ok());
  return **backend;
}

// Marks a shortage as advised: the daemon's message says what to do.
absl::StatusOr<std::unique_ptr<client::Region>> Leased(
    absl::StatusOr<std::unique_ptr<client::Region>> region) {
  if (region.ok() || !IsOutOfMemory(region.status())) return region;
  return Advised(region.status());
}

// By default, a job's only rank on the GPU takes what other jobs leave of it,
// and several ranks take equal shares of all of it.
absl::StatusOr<Bytes> HbmSize(const RankMemory::Options& options) {
  if (options.hbm.count() > 0) return options.hbm;
  const client::NodeLimits limits = options.session->limits();
  // Ranks lease one after the other, and must not count each other's leases.
  const Bytes all = options.ranks_on_gpu > 1
                        ? limits.gpu_total
                        : limits.gpu_total - limits.gpu_leased;
  const Bytes size =
      (all / options.ranks_on_gpu / limits.granularity) * limits.granularity;
  if (size > Bytes(0)) return size;
  return Advised(
      ShortOf(Shortage::kGpuMemory,
              fmt::format("GPU {} has {}, of which jobs hold {}: nothing is "
                          "left; take another GPU, or wait (sluicectl status)",
                          options.gpu.value(), FormatBytes(limits.gpu_total),
                          FormatBytes(limits.gpu_leased))));
}

// Runs each kind of collective of a run once; `numbers` has two per rank.
absl::Status SendSome(Collectives& gpus, at::Tensor numbers) {
  const int64_t ranks = gpus.world_size();
  const std::vector<int64_t> one(static_cast<size_t>(ranks), 1);
  // The first operation on the GPU also gives the thread its context, without
  // which NCCL refuses.
  numbers.zero_();
  SLUICE_RETURN_IF_ERROR(gpus.SumAll(numbers));
  SLUICE_RETURN_IF_ERROR(gpus.SumTo(numbers, 0));
  SLUICE_RETURN_IF_ERROR(gpus.Broadcast(numbers, 0));
  return gpus.AllToAll(numbers.narrow(0, 0, ranks), one,
                       numbers.narrow(0, ranks, ranks), one);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankMemory>> RankMemory::Open(Options options) {
  const client::NodeLimits limits = options.session->limits();
  const at::Device device = DeviceOf(limits.driver, limits.device);
  if (device.is_cpu() && options.attention != stream::AttentionKernel::kAuto) {
    return absl::UnimplementedError(fmt::format(
        "attention by {} needs a real GPU, and this node's GPUs are simulated, "
        "where the CPU's flash attention computes: ask for auto",
        stream::Name(options.attention)));
  }
  std::unique_ptr<RankMemory> memory(
      new RankMemory(std::move(options), device));
  if (device.is_cuda()) {
    // A streamed step in bf16 has no fp32 products. For those of other bf16
    // runs (`profile`), TF32 loses less than bf16 would.
    at::globalContext().setAllowTF32CuBLAS(memory->options_.dtype ==
                                           stream::Dtype::kBf16);
    SLUICE_ASSIGN_OR_RETURN(memory->backend_,
                            OpenCudaBackend(&memory->session().driver(), device,
                                            memory->options_.attention));
  }
  return memory;
}

absl::Status RankMemory::Lease() {
  SLUICE_CHECK(region_ == nullptr);
  SLUICE_ASSIGN_OR_RETURN(const Bytes size, HbmSize(options_));
  SLUICE_ASSIGN_OR_RETURN(region_, Leased(session().LeaseGpu(size)));
  if (device_.is_cuda()) {
    SLUICE_ASSIGN_OR_RETURN(pinned_, LeaseHost(HostStage::kSize));
    stage_.emplace(pinned_->data(), pinned_->size());
  } else {
    stage_.emplace();
  }
  allocator_ = std::make_unique<RegionAllocator>(device_, region_->data(),
                                                 region_->size());
  if (device_.is_cuda()) {
    SLUICE_ASSIGN_OR_RETURN(const device::Stream stream, ComputeStream());
    allocator_->TimeSegmentsOn(&session().driver(), stream);
  }
  return absl::OkStatus();
}

RankMemory::~RankMemory() {
  if (allocator_ == nullptr) return;
  // Kernels of the last step's update may still run.
  AwaitStream(device());
  DropWorkspaces(device());
  allocator_->Disarm();
}

absl::StatusOr<device::Stream> RankMemory::ComputeStream() {
  return session().driver().AdoptStream(
      session().limits().device,
      LoadedTorchCuda()->CurrentStream(device().index()));
}

std::string RankMemory::KernelName(at::ScalarType type,
                                   int64_t head_dim) const {
  return OwnBackend(device()).KernelName(type, head_dim);
}

bool RankMemory::rounds_output() const {
  return !OwnBackend(device()).traits().blocks_in_fp32;
}

Bytes RankMemory::fixed_host() const {
  Bytes size = pinned_ != nullptr ? pinned_->size() : Bytes(0);
  for (const auto& region : fixed_) size += region->size();
  return size;
}

absl::StatusOr<std::byte*> RankMemory::LeaseFixed(Bytes size) {
  SLUICE_ASSIGN_OR_RETURN(auto region, LeaseHost(size));
  fixed_.push_back(std::move(region));
  return fixed_.back()->data();
}

absl::Status RankMemory::Arm() {
  allocator_->Arm();
  return CatchStatus("what a GPU's libraries keep",
                     [&] { TakeWorkspaces(device()); });
}

std::optional<Bytes> RankMemory::host_limit() const {
  if (!options_.host_limit.has_value()) return std::nullopt;
  return std::max(*options_.host_limit - fixed_host(), Bytes(0));
}

// Uses what the daemon reported when the session was opened, before any lease.
Bytes RankMemory::host_room() const {
  const Bytes share =
      options_.session->limits().host_free / options_.numa_ranks;
  return host_limit().value_or(std::max(share - fixed_host(), Bytes(0)));
}

absl::StatusOr<std::unique_ptr<client::Region>> RankMemory::LeaseHost(
    Bytes size) {
  const std::optional<Bytes> limit = host_limit();
  if (!limit.has_value() || size <= *limit) {
    return Leased(session().LeaseHost(size));
  }
  const std::string short_of = fmt::format(
      "{} of host memory needed, this rank's share of what the run may take is "
      "{}{}",
      FormatBytes(size), FormatBytes(*limit),
      fixed_host() == Bytes(0)
          ? ""
          : fmt::format(" beside the {} that it holds for the whole run",
                        FormatBytes(fixed_host())));
  if (!options_.beyond_limit) return ShortOf(Shortage::kHostMemory, short_of);
  return Advised(
      ShortOf(Shortage::kHostMemory,
              fmt::format("{}: {}", short_of,
                          options_.beyond_limit(size + fixed_host()))));
}

absl::StatusOr<std::unique_ptr<client::CopyEngine>> RankMemory::StartCopies(
    bool timeline) {
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<client::CopyEngine> engine,
      client::CopyEngine::Start({.driver = &session().driver(),
                                 .device = session().limits().device,
                                 .gate = &session().grants(),
                                 .record_timeline = timeline}));
  if (device().is_cuda()) {
    SLUICE_RETURN_IF_ERROR(
        engine->UseStream(LoadedTorchCuda()->CurrentStream(device().index())));
  }
  return engine;
}

void ChooseWorkspaceSize() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

void TakeWorkspaces(c10::Device device) {
  if (device.is_cpu()) return;
  constexpr int64_t kSide = 16;  // every kernel supports it
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::zeros({kSide, kSide}, On(device, type));
    at::mm(x, x);
    at::addmm(x[0], x, x);  // with a bias: cuBLASLt
    at::dot(x[0], x[0]);
  }
}

void DropWorkspaces(c10::Device device) {
  if (device.is_cuda()) LoadedTorchCuda()->DropWorkspaces();
}

absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus) {
  client::Session& session = memory.session();
  auto region = session.LeaseGpu(session.limits().granularity);
  SLUICE_RETURN_IF_ERROR(Agree(&gpus, region.status()));
  const absl::Status sent = CatchStatus("the ranks' first collectives", [&] {
    return SendSome(gpus, ViewOf((*region)->data(), {2 * gpus.world_size()},
                                 at::kFloat, memory.device()));
  });
  // Issued operations still use the region.
  AwaitStream(memory.device());
  SLUICE_RETURN_IF_ERROR(sent);
  SLUICE_RETURN_IF_ERROR(gpus.Check());
  region->reset();
  return session.MeasureOutside();
}

}  // namespace sluice::runtime
