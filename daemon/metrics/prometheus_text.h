// A snapshot in Prometheus' text format. Every metric is explained in
// README.md; names follow https://prometheus.io/docs/practices/naming.
//
// Thread safety: pure, but ReadProcessStats reads the file system.
#pragma once

#include <string>

#include "daemon/core/snapshot.h"

namespace sluice::daemon {

// The kernel's figures about the daemon's own process.
struct ProcessStats {
  double cpu_seconds = 0;
  double resident_bytes = 0, virtual_bytes = 0;
  double open_fds = 0, max_fds = 0;
  double start_time_seconds = 0;  // since 1970
};

ProcessStats ReadProcessStats();

// The readers of a page. kAnybody: every program that reaches the TCP port; it
// gets sums, and nothing that names a user, job, process or cgroup. kOperators:
// users that may open the unix socket.
enum class Audience { kAnybody, kOperators };

// Formats a complete `snapshot`, which has statistics; `process` is the
// daemon's own. For kAnybody, omits the series of jobs, users and cgroups.
std::string PrometheusText(const Snapshot& snapshot,
                           const ProcessStats& process, Audience audience);

std::string FrozenText(const ProcessStats& process);

}  // namespace sluice::daemon
