// The kit's own daemon. Thread safety: one owner.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/units.h"

namespace sluice::verify {

// Runs the kit's own sluiced under its keeper, reachable only by this user.
class PrivateDaemon {
 public:
  struct Pools {
    Bytes gpu;   // of each GPU that this process sees
    Bytes host;  // of each NUMA node
  };
  // Returns when the daemon serves. The daemon logs to this process's stderr.
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(
      const Pools& pools, absl::Time until);
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;

  std::string socket() const { return folder_.path() + "/session.sock"; }

  // Returns how much of all GPUs is leased.
  absl::StatusOr<Bytes> Leased() const;
  // Kills the daemon, not its keeper, and returns when it is dead.
  absl::Status KillDaemon();
  // Ends keeper and daemon by SIGTERM. DeadlineExceeded: the keeper did not end
  // by `until`. Internal: the keeper failed, or left a file.
  absl::Status End(absl::Time until);

 private:
  PrivateDaemon(TemporaryFolder folder, pid_t keeper)
      : folder_(std::move(folder)), keeper_(keeper) {}

  const TemporaryFolder folder_;
  pid_t keeper_;  // 0: reaped
};

}  // namespace sluice::verify
