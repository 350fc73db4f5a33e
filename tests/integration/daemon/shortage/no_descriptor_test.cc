// Tests a daemon without any free descriptor, not even the spare one with which
// it turns away connections.
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

absl::Duration CpuOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, ')');
  for (int i = 0; i < 12; ++i) file >> text;  // "utime" and "stime" follow
  int64_t user = 0, system = 0;
  file >> user >> system;
  return absl::Seconds(static_cast<double>(user + system) /
                       static_cast<double>(sysconf(_SC_CLK_TCK)));
}

TEST(NoDescriptor, TheLoopRestsAndAWaitingClientIsServedLater) {
  RunningDaemon daemon;
  rlimit limit;
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  const rlimit none = {3, limit.rlim_max};  // 0, 1 and 2 are in use
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  const absl::Duration before = CpuOf(daemon.pid());
  absl::SleepFor(absl::Seconds(1));
  EXPECT_LT(CpuOf(daemon.pid()) - before, absl::Milliseconds(500));
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  EXPECT_THAT(client.Hello("job"), IsOk());
}

// Guards against a lease that is refused and yet stays granted and charged
// until the session ends.
TEST(NoDescriptor, ALeaseThatCannotBeSentIsRefusedAndNothingStaysCharged) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("job"), IsOk());
  const auto lease = [&] { return client.Lease(wire::Lease::GPU, MiB(2)); };
  {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto first, lease());
    ASSERT_THAT(client.Free(first.body.granted().lease_id()), IsOk());
  }
  rlimit limit;
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  const rlimit none = {3, limit.rlim_max};  // 0, 1 and 2 are in use
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  // The extent exists, but sending it needs a new descriptor.
  EXPECT_THAT(lease(), StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("descriptors")));
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool pool,
                              GpuPool(daemon.socket(), 0));
  EXPECT_EQ(pool.leased_bytes(), 0u);
  EXPECT_THAT(lease(), IsOk());
}

}  // namespace
}  // namespace sluice::testing
