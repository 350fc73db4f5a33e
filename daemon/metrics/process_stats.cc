#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/time/time.h"
#include "daemon/metrics/prometheus_text.h"
#include "proto/base/file_text.h"

namespace sluice::daemon {
namespace {

double Now(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

// Field 22 of /proc/self/stat has the start in ticks since boot.
double StartTicks() {
  std::istringstream fields = ProcessStat("self");
  std::string field;
  double ticks = 0;
  for (int i = 3; i < 22; ++i) fields >> field;
  fields >> ticks;
  return ticks;
}

double OpenFds() {
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/self/fd", error);
  if (error) return 0;
  return static_cast<double>(std::distance(begin(fds), end(fds)));
}

// Returns the start time, computed once: it is derived from two clocks that are
// read at different moments, and a monitor takes each change for a restart.
double StartTime() {
  static const double start =
      Now(CLOCK_REALTIME) - Now(CLOCK_BOOTTIME) +
      StartTicks() / static_cast<double>(sysconf(_SC_CLK_TCK));
  return start;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  stats.cpu_seconds = Now(CLOCK_PROCESS_CPUTIME_ID);
  double pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  stats.virtual_bytes = pages * page;
  stats.resident_bytes = resident * page;
  stats.open_fds = OpenFds();
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    stats.max_fds = static_cast<double>(limit.rlim_cur);
  }
  stats.start_time_seconds = StartTime();
  return stats;
}

}  // namespace sluice::daemon
