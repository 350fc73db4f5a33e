// A rank's place in the run: its numbers, read from its environment (RANK and
// related variables of our launcher and torchrun, or those of srun), and its
// GPU. A value that cannot be derived is an error that says what to export,
// never a guess.
// Thread safety: safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/session.h"

namespace sluice::train {

// One rank's GPU, how many ranks of the job share it, and how many share the
// host memory of its NUMA node.
struct GpuPlace {
  int gpu = 0;
  int ranks = 1;
  int numa_ranks = 1;
};

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node = 0;  // equal for the ranks of one node, different for others
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int master_listen_fd = -1;  // rank 0 of our launcher: already listening
  // Set by our launcher; empty, unset or 0 if it did not start this rank.
  std::string result_file;
  std::string page_file;
  std::optional<GpuPlace> gpu;
  int launcher_pid = 0;
};

// Returns a variable's value; nullopt if it is not set.
using Variables = std::function<std::optional<std::string>(const char*)>;
std::optional<std::string> OfProcess(const char* name);

// Returns whether RANK is set or srun started more than one task. (A batch
// script of sbatch is one task, so a launcher may run there.)
bool IsRank(const Variables& variables = OfProcess);

absl::StatusOr<RankEnvironment> ReadRankEnvironment(
    const Variables& variables = OfProcess);

// Returns the place of each local rank. Ranks take the GPUs `named` in turn. If
// none is named and there are more GPUs than ranks, ranks take those with the
// most free memory, so that jobs of one rank do not all use the first GPU.
// Otherwise rank r takes GPU r modulo the number of GPUs, as with other
// launchers. `gpus` are those that may be used, by index. Pass `spread` = false
// for ranks that choose one after another: free memory, which changes
// meanwhile, then does not count. InvalidArgument: a GPU of `named` is not in
// `gpus`, or more are named than there are ranks. NotFound: there are no GPUs.
absl::StatusOr<std::vector<GpuPlace>> ChooseGpus(
    const std::vector<client::GpuState>& gpus,
    const std::vector<int64_t>& named, int local_ranks, bool spread);

// Parses "1" or "0,2,3". InvalidArgument: the text is no such list.
absl::StatusOr<std::vector<int64_t>> ParseGpuList(const std::string& text);

// Returns the GPUs of the daemon's node that CUDA_VISIBLE_DEVICES does not hide
// (Slurm sets it, too), or all if CUDA sees none of them. CUDA is started only
// if the variable is set, because starting it takes a second. Errors: those of
// client::ListGpus and of the CUDA driver.
absl::StatusOr<std::vector<client::GpuState>> ListVisibleGpus(
    const std::string& socket);

}  // namespace sluice::train
