#include "daemon/bandwidth/server.h"

#include "gtest/gtest.h"

namespace sluice::daemon::bandwidth {
namespace {

absl::Time AtSecond(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// 10 bytes within 2 s, every 5 s.
Server Promised() {
  Server server;
  server.Promise({Bytes(10), absl::Seconds(2), absl::Seconds(5)}, AtSecond(0));
  return server;
}

void Ask(Server& server, double bytes, double now,
         absl::Time needed_by = absl::InfinitePast()) {
  server.Ask(bytes, AtSecond(now), needed_by);
  server.Release(AtSecond(now));
  server.CheckInvariants();
}

TEST(Server, WithoutAPromiseEverythingIsExcess) {
  Server server;
  Ask(server, 7, 0);
  EXPECT_EQ(server.released(), 0);
  EXPECT_EQ(server.excess(), 7);
  EXPECT_EQ(server.next_return(), absl::InfiniteFuture());
}

TEST(Server, ReleasesWhatTheBudgetAllowsAndTheRestWhenItComesBack) {
  Server server = Promised();
  Ask(server, 14, 1);
  EXPECT_EQ(server.released(), 10);
  EXPECT_EQ(server.excess(), 4);
  EXPECT_EQ(server.pieces().front().deadline, AtSecond(3));
  EXPECT_EQ(server.next_return(), AtSecond(6));
  server.Release(AtSecond(5.9));
  EXPECT_EQ(server.excess(), 4);
  server.Release(AtSecond(6));
  EXPECT_EQ(server.excess(), 0);
  EXPECT_EQ(server.pieces().back().deadline, AtSecond(8));
}

// Each part comes back one period after it was released, so that no span of a
// period ever has more than the budget.
TEST(Server, BudgetComesBackInTheParts) {
  Server server = Promised();
  Ask(server, 6, 0);
  Ask(server, 6, 4);
  EXPECT_EQ(server.released(), 10);
  server.Release(AtSecond(5));
  EXPECT_EQ(server.released(), 12);
  Ask(server, 100, 8.9);
  EXPECT_EQ(server.released(), 12 + 4);
  server.Release(AtSecond(9));
  EXPECT_EQ(server.released(), 16 + 4);
}

TEST(Server, WhatIsLentIsNotTakenOffTheBudget) {
  Server server = Promised();
  Ask(server, 14, 0);
  server.TakeExcess(4);
  server.TakeReleased(10);
  EXPECT_EQ(server.released() + server.excess(), 0);
  Ask(server, 10, 5);
  EXPECT_EQ(server.released(), 10);
  server.CheckInvariants();
}

// A caller that comes 0.1 s late each time does not stretch the period.
TEST(Server, BudgetComesBackOnTimeThoughNobodyLooks) {
  Server server = Promised();
  Ask(server, 100, 0);
  server.Release(AtSecond(5.1));
  EXPECT_EQ(server.released(), 20);
  EXPECT_EQ(server.pieces().back().deadline, AtSecond(7));
  server.Release(AtSecond(10.1));
  EXPECT_EQ(server.released(), 30);
  EXPECT_EQ(server.pieces().back().deadline, AtSecond(12));
  server.CheckInvariants();
}

TEST(Server, WithdrawsTheNewestExcessAndNothingThatIsReleased) {
  Server server = Promised();
  Ask(server, 12, 0);
  Ask(server, 5, 0);
  server.Withdraw(6);
  EXPECT_EQ(server.excess(), 1);
  server.Withdraw(6);
  EXPECT_EQ(server.excess(), 0);
  EXPECT_EQ(server.released(), 10);
  server.CheckInvariants();
}

TEST(Server, IsNeverEarlierByAClaimAndMayBeLater) {
  Server server = Promised();
  Ask(server, 4, 0, AtSecond(0.5));
  EXPECT_EQ(server.pieces().back().deadline, AtSecond(2));
  Ask(server, 3, 0, AtSecond(4));
  EXPECT_EQ(server.pieces().back().deadline, AtSecond(4));
  // In order, so behind what is needed later.
  Ask(server, 3, 1);
  EXPECT_EQ(server.pieces().back().deadline, AtSecond(4));
}

}  // namespace
}  // namespace sluice::daemon::bandwidth
