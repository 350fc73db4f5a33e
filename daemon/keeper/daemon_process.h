// The daemon that runs, started as systemd would: descriptors from 3 on, named.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/keeper/kept_descriptors.h"
#include "daemon/keeper/restart_policy.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class DaemonProcess {
 public:
  // A child in a process group of its own (a terminal's Ctrl-C reaches the
  // keeper alone, which forwards it), with $NOTIFY_SOCKET, $LISTEN_FDS,
  // $LISTEN_FDNAMES, $FDSTORE and $SLUICE_KEEPER_PID. Signals that the keeper
  // blocks stay blocked: one that ends the daemon waits until the daemon reads
  // signals, so that it does not leave its sockets behind. argv[0] is the
  // program's path. Status 127, with a line on stderr: it cannot be run.
  static absl::StatusOr<DaemonProcess> Start(
      const std::vector<std::string>& argv, const std::string& notify_socket,
      const KeptDescriptors& kept);

  pid_t pid() const { return pid_; }
  int fd() const { return life_.get(); }  // readable when it has ended
  bool HasEnded() const;
  void Signal(int signal) const;
  // The same with kEndsService: the service ends with the daemon.
  void EndService(int signal) const;
  // Kills all that it started and left in its process group.
  void KillGroup() const;
  // How the daemon ended; what it left in its group is killed. Its number stays
  // its own until Reap.
  DaemonEnd End() const;
  // Gives the number back. The kernel then drops what /proc showed of it: some
  // milliseconds if thousands of descriptors were looked at there.
  void Reap() const;

 private:
  DaemonProcess(pid_t pid, UniqueFd life) : pid_(pid), life_(std::move(life)) {}

  pid_t pid_;
  UniqueFd life_;  // a pidfd
};

}  // namespace sluice::daemon
