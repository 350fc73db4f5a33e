// Tests leases that wait for memory, with real sessions and a real daemon.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "tests/integration/daemon/harness.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::sluice::testing::RunningDaemon;
using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

constexpr Bytes kAll = MiB(36);  // a GPU's whole pool
using Leased = absl::StatusOr<std::unique_ptr<Region>>;

class Waiting : public ::testing::Test {
 protected:
  std::unique_ptr<Session> Open(const std::string& job,
                                absl::Duration wait = absl::ZeroDuration()) {
    auto session = Session::Open(
        {.socket = daemon_.socket(), .job = job, .lease_wait = wait});
    EXPECT_THAT(session, IsOk());
    return *std::move(session);
  }
  // Requests a lease, and checks a moment later that it still waits.
  static std::future<Leased> Ask(Session& session, Bytes size) {
    auto asked = std::async(std::launch::async, [&session, size] {
      return session.LeaseGpu(size);
    });
    EXPECT_FALSE(Came(asked, 600));
    return asked;
  }
  static bool Came(const std::future<Leased>& asked, int within_ms) {
    return asked.wait_for(std::chrono::milliseconds(within_ms)) ==
           std::future_status::ready;
  }
  // Waits until a lease is in the queue or, if `wanted` is false, until the
  // queue is empty. Returns false if that takes too long.
  bool IsWaitedSoon(bool wanted) {
    for (int i = 0; i < 1000; ++i) {
      const auto node = QueryNode(daemon_.socket());
      const bool waited =
          node.ok() && node->json.find("\"waiting\":[{") != std::string::npos;
      if (waited == wanted) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  }
  RunningDaemon daemon_;
};

TEST_F(Waiting, AKilledHoldersMemoryGoesToTheWaitingLease) {
  const auto holder = Child::Fork([&] {
    const auto session = Open("holder");
    const auto all = session->LeaseGpu(kAll);
    ASSERT_THAT(all, IsOk());
    std::puts("holds");
    std::fflush(stdout);
    pause();
  });
  ASSERT_TRUE(holder->WaitForOutput("holds", absl::Seconds(20)));
  const auto session = Open("waits", absl::Seconds(60));
  auto asked = Ask(*session, kAll);
  holder->Kill(SIGKILL);
  EXPECT_THAT(asked.get(), IsOk());
  holder->Join();
}

TEST_F(Waiting, ATimedOutLeaseGivesOneLineThatNamesTheGpu) {
  const auto holder = Open("holder");
  const auto all = holder->LeaseGpu(kAll);
  ASSERT_THAT(all, IsOk());
  const auto session = Open("waits", absl::Milliseconds(300));
  const absl::Time start = absl::Now();
  const auto refused = session->LeaseGpu(MiB(8));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));
  const std::string line(refused.status().message());
  EXPECT_THAT(line, HasSubstr("GPU 0"));
  EXPECT_EQ(line.find('\n'), line.npos);
}

TEST_F(Waiting, LeasesAreServedInTheOrderOfTheirRequests) {
  const auto holder = Open("holder");
  auto all = holder->LeaseGpu(kAll);
  ASSERT_THAT(all, IsOk());
  const auto first = Open("first", absl::Seconds(60));
  const auto second = Open("second", absl::Seconds(60));
  const auto third = Open("third", absl::Seconds(60));
  auto asks_first = Ask(*first, kAll), asks_second = Ask(*second, kAll),
       asks_third = Ask(*third, kAll);
  (*all).reset();
  for (std::future<Leased>* next : {&asks_first, &asks_second, &asks_third}) {
    Leased got = next->get();  // freed at the end of this iteration
    ASSERT_THAT(got, IsOk());
    for (const std::future<Leased>* other :
         {&asks_first, &asks_second, &asks_third}) {
      EXPECT_FALSE(other->valid() && Came(*other, 50));
    }
  }
}

TEST_F(Waiting, ASmallLeaseOvertakesOnlyInTheFirstHalfOfAWait) {
  const auto holder = Open("holder");
  const auto most = holder->LeaseGpu(MiB(30));
  ASSERT_THAT(most, IsOk());
  const auto late = Open("late");
  const auto session = Open("waits", absl::Seconds(12));
  auto asked = Ask(*session, kAll);
  EXPECT_THAT(late->LeaseGpu(MiB(4)), IsOk());
  absl::SleepFor(absl::Seconds(7));
  EXPECT_THAT(late->LeaseGpu(MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(asked.get(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(late->LeaseGpu(MiB(4)), IsOk());
}

TEST_F(Waiting, AKilledWaiterLeavesTheQueue) {
  const auto holder = Open("holder");
  auto most = holder->LeaseGpu(MiB(30));
  ASSERT_THAT(most, IsOk());
  const auto waits = Child::Fork([&] {
    const auto session = Open("waits", absl::Seconds(60));
    std::puts("asks");
    std::fflush(stdout);
    session->LeaseGpu(kAll).status().IgnoreError();
  });
  ASSERT_TRUE(waits->WaitForOutput("asks", absl::Seconds(20)));
  EXPECT_TRUE(IsWaitedSoon(true));
  waits->Kill(SIGKILL);
  waits->Join();
  EXPECT_TRUE(IsWaitedSoon(false));
}

TEST_F(Waiting, ALeaseThatCanNeverFitIsRefusedAtOnce) {
  const auto session = Open("waits", absl::Seconds(60));
  EXPECT_THAT(session->LeaseGpu(kAll + MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace sluice::client
