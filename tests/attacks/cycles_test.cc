// After many ranks that attach, lease and die, the daemon holds no more
// descriptors, files or memory than before.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/attacks/scene.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

int Entries(const std::string& folder) {
  const auto all = std::filesystem::recursive_directory_iterator(folder);
  return static_cast<int>(std::distance(begin(all), end(all)));
}

struct Held {
  int descriptors, files;
  Bytes memory;
};

Held HeldBy(const RunningDaemon& daemon) {
  return {.descriptors = daemon.Descriptors(),
          .files = Entries(daemon.runtime_dir()),
          .memory = daemon.Memory("RssAnon")};
}

// Attaches and leases. Every fourth rank is killed with its lease; the others
// exit without freeing it.
void AttachLeaseDie(const RunningDaemon& daemon, int number) {
  const auto rank = Child::Fork([&] {
    SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                                RawClient::Connect(daemon.socket()));
    ASSERT_THAT(client.Hello(fmt::format("cycle{}", number)), IsOk());
    ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(1)), IsOk());
    ASSERT_THAT(client.Lease(wire::Lease::HOST, MiB(1)), IsOk());
    if (number % 4 == 0) raise(SIGKILL);
    _exit(0);
  });
  const ChildResult result = rank->Join();
  ASSERT_TRUE(result.exit_code == 0 || result.signal == SIGKILL)
      << result.out << result.err;
}

TEST(Cycles, DeadRanksLeaveNothingInTheDaemon) {
  RunningDaemon daemon;
  const int cycles = Count(200, 2000);
  // Warms up: the daemon makes buffers and extents that it keeps.
  for (int i = 0; i < cycles / 10; ++i) AttachLeaseDie(daemon, i);
  ASSERT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
  const Held before = HeldBy(daemon);
  for (int i = 0; i < cycles; ++i) AttachLeaseDie(daemon, cycles + i);
  const absl::Time end = absl::Now() + absl::Seconds(10);
  Held after = HeldBy(daemon);
  while (after.descriptors > before.descriptors && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(100));
    after = HeldBy(daemon);
  }
  EXPECT_THAT(WaitUntilFree(daemon.socket(), 0, absl::Seconds(10)), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const wire::Pool host,
                              HostPool(daemon.socket(), 0));
  EXPECT_EQ(host.free_bytes(), host.total_bytes());
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_EQ(after.files, before.files);
  EXPECT_LE(after.memory, before.memory + MiB(2));
  fmt::print("{} cycles: {} -> {} descriptors, {} -> {} files, {} -> {} KiB\n",
             cycles, before.descriptors, after.descriptors, before.files,
             after.files, before.memory.count() / 1024,
             after.memory.count() / 1024);
}

}  // namespace
}  // namespace sluice::testing
