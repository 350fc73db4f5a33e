#include "client/torch/run/rank_memory.h"

#include <fmt/format.h>

#include "client/torch/placement.h"
#include "client/train/launch/gpu_choice.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// The lease that nobody asked a size of: what other jobs leave of the GPU,
// shared by this job's ranks on it.
absl::StatusOr<Bytes> HbmSize(const RunOptions& options,
                              const client::NodeLimits& limits,
                              const GpuPlace& place) {
  if (options.hbm.count() > 0) return options.hbm;
  // Ranks that share it lease one after the other, and must not count each
  // other's.
  const Bytes all =
      place.ranks > 1 ? limits.gpu_total : limits.gpu_total - limits.gpu_leased;
  const Bytes size =
      (all / place.ranks / limits.granularity) * limits.granularity;
  if (size > Bytes(0)) return size;
  return DoesNotFit(
      kGpuMemory,
      fmt::format("GPU {} has {}, of which jobs hold {}: nothing is left; name "
                  "another by --gpu, or wait (sluicectl status)",
                  place.gpu, FormatBytes(limits.gpu_total),
                  FormatBytes(limits.gpu_leased)));
}

absl::StatusOr<GpuPlace> PlaceOf(const RunOptions& options,
                                 const RankEnvironment& environment) {
  if (environment.gpu.has_value()) return *environment.gpu;
  const auto gpus = client::ListGpus(options.socket);
  if (!gpus.ok()) return AsBadInput(gpus.status());
  SLUICE_ASSIGN_OR_RETURN(
      const auto places,
      ChooseGpus(*gpus, options.gpus, environment.local_world_size,
                 /*spread=*/environment.local_world_size == 1));
  return places[environment.local_rank];
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankMemory>> RankMemory::Open(
    const RunOptions& options, const RankEnvironment& environment) {
  SLUICE_ASSIGN_OR_RETURN(const GpuPlace place, PlaceOf(options, environment));
  std::unique_ptr<RankMemory> memory(new RankMemory());
  memory->gpu_ = DeviceIndex(static_cast<uint64_t>(place.gpu));
  client::SessionOptions session;
  session.socket = options.socket;
  session.job = options.job;
  session.rank = Rank(static_cast<uint64_t>(environment.rank));
  session.world_size = environment.world_size;
  session.local_ranks = environment.local_world_size;
  session.gpu = memory->gpu_;
  auto opened = client::Session::Open(session);
  if (!opened.ok()) return AsBadInput(opened.status());
  memory->session_ = *std::move(opened);
  const auto device = runtime::DeviceOf(memory->session_->limits().driver);
  if (!device.ok()) return BadInput(device.status().message());
  SLUICE_ASSIGN_OR_RETURN(const Bytes size,
                          HbmSize(options, memory->session_->limits(), place));
  auto region = memory->session_->LeaseGpu(size);
  // The daemon's line says what to do.
  if (IsOutOfMemory(region.status())) {
    return DoesNotFit(LimitedBy(region.status()), region.status());
  }
  SLUICE_RETURN_IF_ERROR(region.status());
  memory->region_ = *std::move(region);
  memory->allocator_ = std::make_unique<runtime::RegionAllocator>(
      *device, memory->region_->data(), memory->region_->size());
  return memory;
}

RankMemory::~RankMemory() {
  if (allocator_ != nullptr) allocator_->Disarm();
}

}  // namespace sluice::train
