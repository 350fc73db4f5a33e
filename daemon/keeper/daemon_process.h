// Starts the daemon as systemd would: descriptors from 3 on, named.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/keeper/kept_descriptors.h"

namespace sluice::daemon {

struct DaemonCommand {
  std::vector<std::string> argv;  // argv[0] is the program's path
  std::string notify_socket;
  // The keeper's own program; empty: the daemon is not told of its keeper, and
  // takes it for systemd.
  std::string keeper;
};

// A child in a process group of its own (a terminal's Ctrl-C reaches the keeper
// alone, which forwards it), with $NOTIFY_SOCKET, $LISTEN_FDS, $LISTEN_FDNAMES,
// $FDSTORE and $SLUICE_KEEPER. Signals that the keeper blocks stay blocked: one
// that ends the daemon waits until the daemon reads signals, so that it does
// not leave its sockets behind. Status 127, with a line on stderr: it cannot be
// run.
absl::StatusOr<pid_t> StartDaemon(const DaemonCommand& command,
                                  const KeptDescriptors& kept);

}  // namespace sluice::daemon
