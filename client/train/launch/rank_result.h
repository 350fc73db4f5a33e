// The result that a rank gives to its launcher.
//
// Each rank writes one small JSON file. The launcher alone decides which line
// and which object the user sees, because only it knows which rank failed first
// and which ranks only lost a peer. Without a launcher (torchrun, Slurm) every
// rank prints its own result.
// Thread safety: pure functions on files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::train {

// How one rank ended. `report` is the object to print: the run's or the
// check's.
struct RankResult {
  int exit = 0;
  std::string message;
  std::string limited_by = "none";
  bool caused_by_peer = false;
  bool interrupted = false;
  std::string report;  // JSON text
};

RankResult MakeResult(const absl::Status& status, const std::string& report);
absl::Status WriteResult(const std::string& path, const RankResult& result);
absl::StatusOr<RankResult> ReadResult(const std::string& path);

}  // namespace sluice::train
