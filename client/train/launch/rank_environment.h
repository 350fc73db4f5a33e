// Reads a rank's place in the run from its environment: RANK and related
// variables of our launcher and torchrun, or those of srun. A value that cannot
// be derived is an error that says what to export, never a guess.
// Thread safety: pure functions of the environment given.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/train/launch/gpu_choice.h"

namespace sluice::train {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node = 0;  // equal for the ranks of one node, different for others
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int master_listen_fd = -1;  // rank 0 of our launcher: already listening
  // These are our launcher's: empty, unset or 0 if it did not start this rank.
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

}  // namespace sluice::train
