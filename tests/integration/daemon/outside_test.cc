// Tests memory that real processes, the ranks of a killed daemon, still hold:
// the next daemon counts as many bytes as the kernel does, and leases none.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/memory_name.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/pool_soon.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kNode[] =
    "[sim]\ngpus = 1\ngpu_memory = \"16MiB\"\nhost_memory = \"32MiB\"\n";
constexpr uid_t kOther = 61234;

// Starts a process that calls `take`, reports that, and stays.
std::unique_ptr<Child> Staying(const std::function<void()>& take) {
  auto child = Child::Fork([&] {
    take();
    if (::testing::Test::HasFailure()) return;
    printf("holds\n");
    fflush(stdout);
    pause();
  });
  EXPECT_TRUE(child->WaitForOutput("holds", absl::Seconds(20)))
      << child->output();
  return child;
}

void MapAll(const std::vector<UniqueFd>& fds, Bytes size) {
  for (const UniqueFd& fd : fds) {
    EXPECT_NE(mmap(nullptr, size.size(), PROT_READ, MAP_SHARED, fd.get(), 0),
              MAP_FAILED);
  }
}

void ExpectOutside(const RunningDaemon& daemon, Bytes wanted) {
  ExpectSoon(daemon.socket(), &wire::Pool::held_outside_bytes, wanted);
}

// Guards against pools that are shown as free and refuse each lease.
TEST(DaemonOutside, MemoryOfAKilledDaemonsRanksIsNotFreeUntilTheyEnd) {
  RunningDaemon daemon(kNode);
  const auto rank = Staying([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("old"), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(auto gpu,
                                client.Lease(wire::Lease::GPU, MiB(12)));
    SLUICE_ASSERT_OK_AND_ASSIGN(auto host,
                                client.Lease(wire::Lease::HOST, MiB(4)));
    for (auto* fds : {&gpu.fds, &host.fds}) {
      for (UniqueFd& fd : *fds) fd.Release();
    }
  });
  daemon.KillAndStartNext();
  // The next daemon has counted this memory before it serves.
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool gpu,
                              GpuPool(daemon.socket(), 0));
  EXPECT_EQ(gpu.held_outside_bytes(), MiB(12).size());
  EXPECT_EQ(gpu.free_bytes(), MiB(4).size());
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool host,
                              HostPool(daemon.socket(), 0));
  EXPECT_EQ(host.held_outside_bytes(), MiB(4).size());
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("new"), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(5)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("12 MiB are held outside")));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(4)), IsOk());
  rank->Kill(SIGKILL);
  rank->Join();
  ExpectOutside(daemon, Bytes(0));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(12)), IsOk());
  EXPECT_THAT(client.Lease(wire::Lease::HOST, MiB(32)), IsOk());
}

TEST(DaemonOutside, MemoryThatAForkedChildOnlyMapsIsNotFree) {
  RunningDaemon daemon(kNode);
  int leave[2];
  ASSERT_EQ(pipe2(leave, O_CLOEXEC), 0);
  auto rank = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("old"), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(auto lease,
                                client.Lease(wire::Lease::GPU, MiB(12)));
    MapAll(lease.fds, MiB(4));
    lease.fds.clear();
    if (fork() != 0) return;
    client.socket().Reset();
    close(leave[1]);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    char byte;
    _exit(read(leave[0], &byte, 1) == 0 ? 0 : 1);
  });
  close(leave[0]);
  rank->ExpectSuccess();
  daemon.KillAndStartNext();
  ExpectOutside(daemon, MiB(12));
  close(leave[1]);
  ExpectOutside(daemon, Bytes(0));
}

// Any user can give a memfd the name of the node's memory.
TEST(DaemonOutside, AnotherUsersFalseNamesAreNotCounted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  RunningDaemon daemon(kNode);
  ASSERT_EQ(chmod(daemon.runtime_dir().c_str(), 0755), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string node,
                              device::NodeName(daemon.runtime_dir() + "/sim"));
  const auto named = [&](Bytes size) {
    const device::Placement where = device::Placement::Gpu(DeviceIndex(0));
    UniqueFd fd(memfd_create(
        device::ToText({node, /*maker=*/1, where, size}).c_str(), 0));
    EXPECT_TRUE(fd && ftruncate(fd.get(), size.count()) == 0);
    return fd;
  };
  const auto liar = Staying([&] {
    ASSERT_EQ(setresuid(kOther, kOther, kOther), 0);
    named(MiB(9)).Release();
    std::vector<UniqueFd> fds;
    fds.push_back(named(GiB(900)));
    MapAll(fds, GiB(900));
  });
  // An honest rank of the same user, with real memory.
  const auto rank = Staying([&] {
    ASSERT_EQ(setresuid(kOther, kOther, kOther), 0);
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("old"), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(auto lease,
                                client.Lease(wire::Lease::GPU, MiB(8)));
    MapAll(lease.fds, MiB(4));
  });
  daemon.KillAndStartNext();
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool pool,
                              GpuPool(daemon.socket(), 0));
  EXPECT_EQ(pool.held_outside_bytes(), MiB(8).size());
}

}  // namespace
}  // namespace sluice::testing
