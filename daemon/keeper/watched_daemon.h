// A daemon that runs: one that this keeper started, or one that it adopted from
// a keeper that died.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/keeper/daemon_process.h"
#include "daemon/keeper/kept_descriptors.h"
#include "daemon/keeper/restart_policy.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class WatchedDaemon {
 public:
  static absl::StatusOr<WatchedDaemon> Start(const DaemonCommand& command,
                                             const KeptDescriptors& kept);
  // InvalidArgument: `pid` is not this process's parent. So only the daemon
  // that asked for it is adopted, and no process that has its number by now.
  static absl::StatusOr<WatchedDaemon> Adopt(pid_t pid);

  pid_t pid() const { return pid_; }
  int fd() const { return life_.get(); }  // readable when it has ended
  bool HasEnded() const;
  void Signal(int signal) const;
  // The same with kEndsService: the service ends with the daemon.
  void EndService(int signal) const;
  // Kills all that it started and left in its process group.
  void KillGroup() const;
  // The command line that it was started with.
  absl::StatusOr<std::vector<std::string>> Command() const;
  // How the daemon ended; what it left in its group is killed. Its number stays
  // its own until Reap.
  DaemonEnd End() const;
  // Gives the number back. The kernel then drops what /proc showed of it: some
  // milliseconds if thousands of descriptors were looked at there.
  void Reap() const;

 private:
  WatchedDaemon(pid_t pid, UniqueFd life, bool child)
      : pid_(pid), life_(std::move(life)), child_(child) {}

  pid_t pid_;
  UniqueFd life_;  // a pidfd
  bool child_;     // else another process waits for it
};

}  // namespace sluice::daemon
