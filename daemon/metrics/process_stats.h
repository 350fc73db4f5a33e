// The kernel's figures about the daemon's own process.
//
// Thread safety: reads the file system only.
#pragma once

namespace sluice::daemon {

struct ProcessStats {
  double cpu_seconds = 0;
  double resident_bytes = 0, virtual_bytes = 0;
  double open_fds = 0, max_fds = 0;
  double start_time_seconds = 0;  // since 1970
};

ProcessStats ReadProcessStats();

}  // namespace sluice::daemon
