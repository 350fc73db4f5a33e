// Tests memory that was returned but that a real process still holds: the
// daemon's counts match the kernel's.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/pool_soon.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

constexpr char kNode[] =
    "[sim]\ngpus = 1\ngpu_memory = \"16MiB\"\nhost_memory = \"32MiB\"\n";

void ExpectLingering(const std::string& socket, Bytes wanted) {
  ExpectSoon(socket, &wire::Pool::lingering_bytes, wanted);
}

// Waits until the daemon reports this process as the only holder, of 12 MiB.
void ExpectHolder(const std::string& socket, int pid) {
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  ASSERT_THAT(client.Observe(), IsOk());
  wire::Request query;
  query.mutable_query();
  nlohmann::json holders;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (holders.empty() && absl::Now() < deadline) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto told, client.Call(query));
    holders = nlohmann::json::parse(told.body.snapshot().json())["holders"];
  }
  ASSERT_EQ(holders.size(), 1);
  EXPECT_EQ(holders[0]["pid"], pid);
  EXPECT_EQ(holders[0]["uid"], geteuid());
  EXPECT_EQ(holders[0]["gpu_bytes"], MiB(12).count());
  EXPECT_EQ(holders[0]["host_bytes"], 0);
}

TEST(DaemonLingering, AForkedChildsMemoryIsNotFree) {
  RunningDaemon daemon(kNode);
  int leave[2];
  ASSERT_EQ(pipe(leave), 0);
  auto rank = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello("demo"), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto lease,
                                client.Lease(wire::Lease::GPU, MiB(12)));
    if (const pid_t child = fork(); child != 0) {
      printf("child %d\n", child);
      fflush(stdout);
      return;
    }
    // The child has the descriptors, but not the session.
    client.socket().Reset();
    close(leave[1]);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    char byte;
    _exit(read(leave[0], &byte, 1) == 0 ? 0 : 1);
  });
  close(leave[0]);
  const ChildResult ended = rank->Join();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  int child = 0;
  ASSERT_EQ(sscanf(ended.out.c_str(), "child %d", &child), 1) << ended.out;
  ExpectLingering(daemon.socket(), MiB(12));
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool held,
                              GpuPool(daemon.socket(), 0));
  EXPECT_EQ(held.free_bytes(), MiB(4).size());
  absl::SleepFor(absl::Milliseconds(600));  // the daemon has counted again
  ExpectLingering(daemon.socket(), MiB(12));
  ExpectHolder(daemon.socket(), child);
  close(leave[1]);
  ExpectLingering(daemon.socket(), Bytes(0));
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
}

// Guards against freed memory that leaves the budget while it lingers: one
// process could hold the whole pool under a small budget.
TEST(DaemonLingering, RepeatedLeaseAndFreeStaysWithinTheBudget) {
  RunningDaemon daemon(
      absl::StrCat(kNode, "[budgets]\nprincipal_gpu_bytes = \"4MiB\"\n"));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  std::vector<UniqueFd> kept;
  std::set<ino_t> files;  // a lease may get returned memory again
  Bytes held;
  for (int i = 0; i < 16; ++i) {  // each of another size
    auto lease = client.Lease(wire::Lease::GPU, KiB(512) + KiB(64) * i);
    if (!lease.ok()) continue;
    for (UniqueFd& fd : lease->fds) {
      struct stat file = {};
      ASSERT_EQ(fstat(fd.get(), &file), 0);
      if (files.insert(file.st_ino).second) held += Bytes(file.st_size);
      kept.push_back(std::move(fd));
    }
    ASSERT_THAT(client.Free(lease->body.granted().lease_id()), IsOk());
  }
  EXPECT_GT(held, MiB(2));
  EXPECT_LE(held, MiB(4));
  ExpectLingering(daemon.socket(), held);
  kept.clear();
  ExpectLingering(daemon.socket(), Bytes(0));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(4)), IsOk());
}

TEST(DaemonLingering, MemoryClosedBeforeFreeIsFreeWithTheReply) {
  RunningDaemon daemon(
      absl::StrCat(kNode, "[budgets]\nprincipal_gpu_bytes = \"8MiB\"\n"));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  for (int i = 0; i < 20; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        auto lease, client.Lease(wire::Lease::GPU, MiB(8) - KiB(64) * i));
    lease.fds.clear();
    ASSERT_THAT(client.Free(lease.body.granted().lease_id()), IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool pool,
                                GpuPool(daemon.socket(), 0));
    ASSERT_EQ(pool.free_bytes(), MiB(16).size()) << i;
  }
}

}  // namespace
}  // namespace sluice::testing
