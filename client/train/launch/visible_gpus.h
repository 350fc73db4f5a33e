// The GPUs of the daemon's node that this process may use.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/session.h"

namespace sluice::train {

// Those of client::ListGpus, without what CUDA_VISIBLE_DEVICES hides (Slurm
// sets it, too). Where that is not set, CUDA is not started, which would take a
// second. Errors as ListGpus. Thread safety: safe.
absl::StatusOr<std::vector<client::GpuState>> ListVisibleGpus(
    const std::string& socket);

}  // namespace sluice::train
