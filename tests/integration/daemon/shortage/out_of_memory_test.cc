// Tests a daemon that gets no more memory from the kernel.
#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/sanitizer.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

rlim_t AddressSpaceOf(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/statm", pid));
  rlim_t pages = 0;
  status >> pages;
  return pages * 4096;
}

// The daemon refuses requests that need more memory. If there is no memory even
// for a refusal, the daemon dies, and the next daemon continues.
TEST(OutOfMemory, NewClientsAreRefusedAndAttachedOnesAreKept) {
  if (kThreadSanitizer)
    GTEST_SKIP() << "ThreadSanitizer needs terabytes of address space";
  KeptDaemon daemon;
  daemon.Start();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("there"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto leased,
                              client.Lease(wire::Lease::GPU, MiB(8)));
  const rlimit tight = {AddressSpaceOf(daemon.pid()), RLIM_INFINITY};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_AS, &tight, nullptr), 0);
  std::vector<RawClient> others;
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    auto other = RawClient::Connect(daemon.socket());
    if (!other.ok()) break;
    const absl::Status hello =
        other->Hello(fmt::format("job{}", i), 0, 1, i % 2).status();
    others.push_back(*std::move(other));
    if (hello.ok()) continue;
    if (!absl::IsResourceExhausted(hello)) break;  // the daemon is dead
    ++refused;
    EXPECT_THAT(hello, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("Cannot allocate memory")));
    if (refused == 1) {
      EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(4)), IsOk());
    }
  }
  EXPECT_GT(refused, 0);
  daemon.KillAndStart();  // whether or not the daemon still runs
  others.clear();
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient late,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(late.Hello("late"), IsOk());
  EXPECT_THAT(client.Free(leased.body.granted().lease_id()), IsOk());
}

}  // namespace
}  // namespace sluice::testing
