#include "daemon/metrics/process_stats.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

// Guards against computing it from two clocks at each scrape: an alert that
// counts its changes would report restarts.
TEST(ProcessStats, AProcessHasOneStart) {
  const double start = ReadProcessStats().start_time_seconds;
  EXPECT_NEAR(start, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()),
              600);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(ReadProcessStats().start_time_seconds, start);
  }
}

}  // namespace
}  // namespace sluice::daemon
