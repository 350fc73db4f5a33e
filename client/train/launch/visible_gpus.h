// Lists the GPUs of the daemon's node that this process may use.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/session.h"

namespace sluice::train {

// Returns the GPUs of client::ListGpus that CUDA_VISIBLE_DEVICES does not hide
// (Slurm sets it, too). Returns all if CUDA sees none of them. If the variable
// is not set, the function does not start CUDA, which would take a second.
// Errors: those of ListGpus and of the CUDA driver. Thread safety: safe.
absl::StatusOr<std::vector<client::GpuState>> ListVisibleGpus(
    const std::string& socket);

}  // namespace sluice::train
