// The running daemon. It is started as systemd would start it: it inherits
// named descriptors with numbers from 3 on.
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
  // Starts the program argv[0] with $NOTIFY_SOCKET, $LISTEN_FDS,
  // $LISTEN_FDNAMES, $FDSTORE and $SLUICE_KEEPER_PID. The process has a process
  // group of its own: a terminal's Ctrl-C reaches only the keeper, which
  // forwards it. Signals that the keeper blocks stay blocked, so a signal that
  // ends the daemon waits until the daemon reads signals and can remove its
  // sockets. If the program cannot be run, the process writes a line to stderr
  // and exits with status 127.
  static absl::StatusOr<DaemonProcess> Start(
      const std::vector<std::string>& argv, const std::string& notify_socket,
      const KeptDescriptors& kept);

  pid_t pid() const { return pid_; }
  int fd() const { return life_.get(); }  // readable when it has ended
  bool HasEnded() const;
  void Signal(int signal) const;
  // Sends the signal with the value kEndsService, so that the service ends with
  // the daemon.
  void EndService(int signal) const;
  // Kills all processes that the daemon started and that are still in its
  // process group.
  void KillGroup() const;
  // Returns how the daemon ended, and kills the rest of its process group. The
  // pid stays reserved until Reap.
  DaemonEnd End() const;
  // Releases the pid. The kernel then drops the process's /proc entries, which
  // takes some milliseconds if thousands of descriptors were inspected there.
  void Reap() const;

 private:
  DaemonProcess(pid_t pid, UniqueFd life) : pid_(pid), life_(std::move(life)) {}

  pid_t pid_;
  UniqueFd life_;  // a pidfd
};

}  // namespace sluice::daemon
