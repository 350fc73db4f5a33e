// Kills a daemon after each message to its keeper in turn, while a client
// attaches, leases memory, uses it, frees it and ends.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_daemon.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

constexpr Bytes kExtent = KiB(64);

void Fill(client::Region& region, std::byte with) {
  std::fill_n(region.data(), region.size().count(), with);
}

bool IsFull(const client::Region& region, std::byte of) {
  return std::all_of(region.data(), region.data() + region.size().count(),
                     [&](std::byte each) { return each == of; });
}

// Returns false if the daemon died before it had stored the session.
bool AttachesAndWorks(const std::string& socket) {
  const auto session = client::Session::Open({.socket = socket});
  if (!session.ok()) {
    EXPECT_THAT(session, StatusIs(absl::StatusCode::kUnavailable));
    return false;
  }
  const auto first = (*session)->LeaseHost(3 * kExtent);
  EXPECT_THAT(first, IsOk());
  if (!first.ok()) return true;
  Fill(**first, std::byte{1});
  const auto second = (*session)->LeaseHost(2 * kExtent);
  EXPECT_THAT(second, IsOk());
  if (!second.ok()) return true;
  Fill(**second, std::byte{2});
  EXPECT_TRUE(IsFull(**first, std::byte{1}));
  return true;
}

// Expects that the client's memory is free again, and that its session and use
// page are not kept.
void ExpectNothingIsLeft(const KeptDaemon& daemon) {
  const auto done = [&] {
    const auto pool = HostPool(daemon.socket(), 0);
    return pool.ok() && pool->free_bytes() == pool->total_bytes() &&
           daemon.Count("s") == 1 && daemon.Count("u") == 0;  // only "state"
  };
  const absl::Time late = absl::Now() + absl::Seconds(20);
  while (!done() && absl::Now() < late) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(done()) << daemon.Log();
}

TEST(TakeOverOfClient, AKillAfterAnyMessageToTheKeeperLosesNothing) {
  int attached = 0, killed = 0;
  for (int behind = 0; behind < 20; ++behind) {
    SCOPED_TRACE(behind);
    KeptDaemon daemon("[pools]\nextent_bytes = \"64KiB\"\n");
    daemon.Start();
    daemon.KillBehind(behind);
    std::atomic<bool> ended = false;
    std::thread client([&] {
      attached += AttachesAndWorks(daemon.socket());
      ended = true;
    });
    while (!ended && !daemon.WasKilled()) absl::SleepFor(absl::Milliseconds(1));
    if (daemon.WasKilled()) {
      ++killed;
      daemon.Join();
      daemon.Start();
    }
    client.join();
    if (daemon.WasKilled()) {  // after the client's end
      ++killed;
      daemon.Join();
      daemon.Start();
    }
    daemon.KillBehind(-1);
    ExpectNothingIsLeft(daemon);
  }
  std::printf("killed %d times; the client was attached %d times\n", killed,
              attached);
  EXPECT_GE(killed, 8);
  EXPECT_GE(attached, 15);
}

}  // namespace
}  // namespace sluice::testing
