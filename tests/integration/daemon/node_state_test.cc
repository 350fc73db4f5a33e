// Tests attacks of another user on the ranks of a simulated node. The user
// cannot change the node's state. Writes to the shared clocks delay other ranks
// no more than the user's copies could.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/sim.h"
#include "kernels/device/sim/state.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

constexpr uid_t kHonest = 61235, kLiar = 61234;
constexpr DeviceIndex kGpu(0);

// Opens a session's driver, as libsluice does.
absl::StatusOr<std::unique_ptr<device::Driver>> DriverOf(
    const RunningDaemon& daemon, const RawClient::Reply& welcome) {
  return device::OpenSimDriver(daemon.runtime_dir() + "/sim", welcome.fds[2]);
}

// Copies `size` to the GPU. Returns how long it took.
absl::Duration Copy(device::Driver& driver, Bytes size) {
  std::vector<std::byte> from(size.size()), to(size.size());
  const auto stream = driver.CreateStream(kGpu);
  EXPECT_THAT(stream.status(), IsOk());
  const absl::Time start = absl::Now();
  EXPECT_THAT(driver.CopyAsync(to.data(), from.data(), size,
                               device::CopyDirection::kHostToDevice, *stream),
              IsOk());
  EXPECT_THAT(driver.SynchronizeStream(*stream), IsOk());
  return absl::Now() - start;
}

// Tries to change the node's state as another user. Then sets the clocks of all
// links far ahead, again and again.
void Scribble(const RunningDaemon& daemon) {
  ASSERT_EQ(setresuid(kLiar, kLiar, kLiar), 0);
  const std::string state = daemon.runtime_dir() + "/sim/node.state";
  EXPECT_EQ(truncate(state.c_str(), 0), -1);
  EXPECT_EQ(open(state.c_str(), O_RDWR | O_CLOEXEC), -1);
  const UniqueFd lock(open(state.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), -1);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto welcome, client.Hello("liar"));
  EXPECT_EQ(ftruncate(welcome.fds[2].get(), 0), -1);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto clocks,
                              device::MapClocks(welcome.fds[2]));
  if (::testing::Test::HasFailure()) return;
  printf("scribbles\n");
  fflush(stdout);
  while (true) {
    for (auto& link : clocks->links) link.next_free_ns[0] = INT64_MAX;
    usleep(100);
  }
}

// Guards against a SIGBUS in the rank, and against copies that never end.
TEST(DaemonNodeState, ARankSurvivesAnotherUsersWritesToSharedState) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  RunningDaemon daemon(
      "[sim]\ngpus = 1\ngpu_memory = \"16MiB\"\nhost_memory = \"16MiB\"\n"
      "links = [{name = \"pcie0\", h2d_bytes_per_s = 2e9}]\n");
  ASSERT_EQ(chmod(daemon.runtime_dir().c_str(), 0755), 0);
  const auto liar = Child::Fork([&] { Scribble(daemon); });
  ASSERT_TRUE(liar->WaitForOutput("scribbles", absl::Seconds(20)))
      << liar->output();
  const auto honest = Child::Fork([&] {
    ASSERT_EQ(setresuid(kHonest, kHonest, kHonest), 0);
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto welcome, client.Hello("honest"));
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto driver, DriverOf(daemon, welcome));
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                client.Lease(wire::Lease::GPU, MiB(4)));
    EXPECT_THAT(
        driver->Import(lease.fds[0], device::Placement::Gpu(kGpu), MiB(4)),
        IsOk());
    // 8 slices, each behind at most 64 other slices.
    const absl::Duration took = Copy(*driver, MiB(8));
    EXPECT_LT(took, absl::Seconds(8));
    printf("copied 8 MiB in %s\n", absl::FormatDuration(took).c_str());
  });
  const ChildResult result = honest->Join();
  EXPECT_EQ(result.exit_code, 0) << result.out;
  printf("%s", result.out.c_str());
}

TEST(DaemonNodeState, AllRanksGetTheSameClocks) {
  RunningDaemon daemon;
  std::vector<ino_t> inodes;
  for (int rank = 0; rank < 2; ++rank) {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto welcome,
                                client.Hello("shares", rank, 2));
    ASSERT_EQ(welcome.fds.size(), 3u);
    struct stat status;
    ASSERT_EQ(fstat(welcome.fds[2].get(), &status), 0);
    inodes.push_back(status.st_ino);
  }
  EXPECT_EQ(inodes[0], inodes[1]);
}

}  // namespace
}  // namespace sluice::testing
