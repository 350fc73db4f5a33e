// Which GPU of the node a rank takes.
//
// Named ones (--gpu) are taken in turn. Else ranks spread: where a job has
// fewer ranks than the node has GPUs, its ranks take those with the most free
// memory, so that jobs of one rank do not all land on the first; where it has
// as many or more, rank r takes GPU r mod GPUs, as with other launchers.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/session.h"

namespace sluice::train {

// One rank's, how many ranks of the job share it, and how many the host memory
// of its NUMA node.
struct GpuPlace {
  int64_t gpu = 0;
  int64_t ranks = 1;
  int64_t numa_ranks = 1;
};

// The GPU of each local rank. `spread` false: rank r takes GPU r mod GPUs where
// none are named; ranks that choose by themselves, one by one, must not be told
// apart by what is free at their moment. `gpus`: those that may be used, by
// index. InvalidArgument: a GPU that is not among them, by name and limit;
// NotFound: there are none.
absl::StatusOr<std::vector<GpuPlace>> ChooseGpus(
    const std::vector<client::GpuState>& gpus,
    const std::vector<int64_t>& named, int local_ranks, bool spread);

// "1" or "0,2,3". InvalidArgument: what it is not.
absl::StatusOr<std::vector<int64_t>> ParseGpuList(const std::string& text);

}  // namespace sluice::train
