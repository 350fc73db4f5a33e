#include <fmt/format.h>

#include <string>
#include <utility>

#include "client/train/launch/gpu_choice.h"
#include "client/train/launch/outcome.h"
#include "client/train/rank.h"
#include "proto/base/numa.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::train {
namespace {

absl::StatusOr<GpuPlace> PlaceOf(const RunOptions& options,
                                 const RankEnvironment& environment) {
  if (environment.gpu.has_value()) return *environment.gpu;
  const auto gpus = ListVisibleGpus(options.socket);
  if (!gpus.ok()) return AsBadInput(gpus.status());
  SLUICE_ASSIGN_OR_RETURN(
      const auto places,
      ChooseGpus(*gpus, options.gpus, environment.local_world_size,
                 /*spread=*/environment.local_world_size == 1));
  return places[environment.local_rank];
}

}  // namespace

absl::StatusOr<std::unique_ptr<runtime::RankMemory>> OpenMemory(
    const RunOptions& options, const RankEnvironment& environment) {
  SLUICE_ASSIGN_OR_RETURN(const GpuPlace place, PlaceOf(options, environment));
  client::SessionOptions session;
  session.socket = options.socket;
  session.job = options.job;
  session.rank = Rank(static_cast<uint64_t>(environment.rank));
  session.world_size = environment.world_size;
  session.local_ranks = environment.local_world_size;
  session.gpu = DeviceIndex(static_cast<uint64_t>(place.gpu));
  session.lease_wait = absl::Seconds(options.wait);
  auto opened = client::Session::Open(session);
  if (!opened.ok()) return AsBadInput(opened.status());
  const client::NodeLimits limits = (*opened)->limits();
  if (!options.driver.empty() && options.driver != limits.driver) {
    return BadInput(fmt::format(
        "--device {}: the GPUs of this daemon are of its driver \"{}\": name "
        "another daemon by --socket, or leave --device out",
        options.driver, limits.driver));
  }
  // NCCL's own error names neither rank nor GPU.
  if (!IsSimulated(limits.driver) && place.ranks > 1) {
    return BadInput(fmt::format(
        "{} ranks of this run are on GPU {}, and NCCL takes one on each GPU: "
        "start as many --ranks as there are GPUs, or name another for each by "
        "--gpu",
        place.ranks, place.gpu));
  }
  // Launches from the other socket arrive late, and its caches are far from the
  // pages that the GPU copies.
  if (!IsSimulated(limits.driver)) StayOn(CoresOfSocket(limits.numa));
  runtime::RankMemory::Options memory{
      .session = *std::move(opened),
      .gpu = session.gpu,
      .hbm = options.hbm,
      .ranks_on_gpu = place.ranks,
      .numa_ranks = static_cast<int>(place.numa_ranks),
      .attention = options.attention,
      // A profile measures the dtype that a GPU trains in.
      .dtype =
          options.command == Command::kProfile ? Dtype::kBf16 : options.dtype};
  if (options.host.count() > 0) {
    const int ranks = environment.local_world_size;
    memory.host_limit = options.host / ranks;
    memory.beyond_limit = [ranks](Bytes needed) {
      return fmt::format("give --host {}, or shorten --seq-len",
                         ExactBytes(RoundUp(needed, MiB(1)) * ranks));
    };
  }
  auto opened_memory = runtime::RankMemory::Open(std::move(memory));
  if (opened_memory.status().code() == absl::StatusCode::kUnimplemented) {
    return BadInput(std::string(opened_memory.status().message()));
  }
  if (!opened_memory.ok()) return WithAdvice(opened_memory.status());
  return opened_memory;
}

}  // namespace sluice::train
