// Chooses the GPU of each rank on this node: those of --gpu in turn; else, if
// the node has more GPUs than the job has ranks, those with the most free
// memory, so that jobs of one rank do not all land on the first GPU; else rank
// r takes GPU r mod GPUs, as with other launchers.
// Thread safety: safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/session.h"

namespace sluice::train {

// One rank's GPU, how many ranks of the job share it, and how many share the
// host memory of its NUMA node.
struct GpuPlace {
  int64_t gpu = 0;
  int64_t ranks = 1;
  int64_t numa_ranks = 1;
};

// Returns the place of each local rank. `gpus` are those that may be used, by
// index. `spread` is false for ranks that choose one by one: their choice must
// not depend on what is free at that moment. InvalidArgument: a GPU of `named`
// is not among `gpus`, or more are named than there are ranks. NotFound: there
// are no GPUs.
absl::StatusOr<std::vector<GpuPlace>> ChooseGpus(
    const std::vector<client::GpuState>& gpus,
    const std::vector<int64_t>& named, int local_ranks, bool spread);

// Parses "1" or "0,2,3". InvalidArgument: the text is no such list.
absl::StatusOr<std::vector<int64_t>> ParseGpuList(const std::string& text);

// Returns the GPUs of the daemon's node that CUDA_VISIBLE_DEVICES does not hide
// (Slurm sets it, too), or all if CUDA sees none of them. CUDA is started only
// if the variable is set, because that takes a second. Errors: those of
// client::ListGpus and of the CUDA driver.
absl::StatusOr<std::vector<client::GpuState>> ListVisibleGpus(
    const std::string& socket);

}  // namespace sluice::train
