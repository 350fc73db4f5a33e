#include "client/train/rank_memory.h"

#include <fmt/format.h>

#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// A daemon that is not there is the user's to fix.
absl::Status AsBadInput(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable ||
      ShortageOf(status) != Shortage::kNone) {
    return status;
  }
  return absl::NotFoundError(std::string(status.message()));
}

Bytes HbmSize(const RunOptions& options, const client::NodeLimits& limits,
              int64_t ranks_on_gpu) {
  if (options.hbm.count() > 0) return options.hbm;
  return (limits.gpu_total / ranks_on_gpu / limits.granularity) *
         limits.granularity;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankMemory>> RankMemory::Open(
    const RunOptions& options, const RankEnvironment& environment) {
  const auto gpus = client::CountGpus(options.socket);
  if (!gpus.ok()) return AsBadInput(gpus.status());
  if (*gpus < 1) return BadInput("the daemon's node has no GPU");
  std::unique_ptr<RankMemory> memory(new RankMemory());
  const int64_t gpu = environment.local_rank % *gpus;
  memory->gpu_ = DeviceIndex(static_cast<uint64_t>(gpu));
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
  // Local ranks gpu, gpu + gpus, gpu + 2 gpus, … share this one.
  const int64_t on_gpu = (environment.local_world_size - 1 - gpu) / *gpus + 1;
  const Bytes size = HbmSize(options, memory->session_->limits(), on_gpu);
  auto region = memory->session_->LeaseGpu(size);
  // The daemon's line says what to do.
  if (IsOutOfMemory(region.status())) {
    return DoesNotFit(LimitedBy(region.status()), region.status());
  }
  SLUICE_RETURN_IF_ERROR(region.status());
  memory->region_ = *std::move(region);
  memory->allocator_ = std::make_unique<runtime::RegionAllocator>(
      memory->region_->data(), memory->region_->size());
  return memory;
}

RankMemory::~RankMemory() {
  if (allocator_ != nullptr) allocator_->Disarm();
}

}  // namespace sluice::train
