// A snapshot in Prometheus' text format. Every metric is explained in
// README.md; names follow https://prometheus.io/docs/practices/naming.
//
// Thread safety: pure.
#pragma once

#include <string>

#include "daemon/core/snapshot.h"
#include "daemon/metrics/process_stats.h"

namespace sluice::daemon {

// The readers of a page. kAnybody: everything that reaches the TCP port, which
// gets sums and nothing with a user, a job, a process or a cgroup. kOperators:
// users that may open the unix socket.
enum class Audience { kAnybody, kOperators };

// `snapshot` is a complete one, with statistics; `process` is the daemon's own.
// kAnybody omits the series of jobs, users and cgroups.
std::string PrometheusText(const Snapshot& snapshot,
                           const ProcessStats& process, Audience audience);

// The text of a frozen daemon (daemon/frozen), which has no snapshot.
std::string FrozenText(const ProcessStats& process);

}  // namespace sluice::daemon
