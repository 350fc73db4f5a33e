#include <sys/resource.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "daemon/metrics/prometheus_text.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

// Guards against computing the start time from two clocks at each scrape: an
// alert on changes of the start time would report restarts.
TEST(ProcessStats, TheStartTimeDoesNotChange) {
  const double start = ReadProcessStats().start_time_seconds;
  EXPECT_NEAR(start, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()),
              600);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(ReadProcessStats().start_time_seconds, start);
  }
}

TEST(ProcessStats, TheFiguresAreOfThisProcess) {
  const ProcessStats before = ReadProcessStats();
  EXPECT_GT(before.resident_bytes, 1 << 20);
  EXPECT_GT(before.virtual_bytes, before.resident_bytes);
  EXPECT_GT(before.cpu_seconds, 0);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(before.max_fds, static_cast<double>(limit.rlim_cur));
  const int more[] = {dup(2), dup(2), dup(2)};
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds + 3);
  for (const int fd : more) close(fd);
}

}  // namespace
}  // namespace sluice::daemon
