// Tests that operators see which copies came later than they were needed.
#include <sys/mman.h>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::ContainsRegex;

// The rank states that its copy was due before the copy began.
TEST(DaemonMetrics, ACopyGrantedAfterItsDueTimeIsCounted) {
  RunningDaemon daemon(
      "[sim]\ngpus = 1\nlinks = [{name = \"slow\", h2d_bytes_per_s = 1e7, "
      "d2h_bytes_per_s = 1e7}]\n");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto hello, client.Hello("demo"));
  void* page = mmap(nullptr, sizeof(GrantUse), PROT_READ | PROT_WRITE,
                    MAP_SHARED, hello.fds[1].get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* use = static_cast<GrantUse*>(page);
  use->slot.due_ns[kD2h] = 1;
  use->slot.due_bytes[kD2h] = 8'000'000;
  use->slot.used_bytes[kD2h] = 8'000'000;
  AwaitRefills(hello.fds[0].get());
  absl::SleepFor(absl::Milliseconds(100));
  use->slot.due_bytes[kD2h] = 0;
  const std::string status = Child::Spawn({BinaryPath("sluicectl"), "--socket",
                                           daemon.socket(), "status"})
                                 ->Join()
                                 .out;
  // The copy is late by 0.1 s, or by less than 0.7 s if the machine delayed the
  // test.
  EXPECT_THAT(status, ContainsRegex("demo +0/1 .* 0 to, 1 from: 0\\.[0-6]"));
  munmap(page, sizeof(GrantUse));
}

}  // namespace
}  // namespace sluice::testing
