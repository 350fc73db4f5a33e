// Tests what ranks are told when the service is stopped or killed, and when
// only its daemon ends.
#include <signal.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/mutex.h"
#include "tests/support/status_matchers.h"
#include "tests/support/under_keeper.h"

namespace sluice::testing {
namespace {

using client::SessionEvent;
using Kind = SessionEvent::Kind;
using ::testing::HasSubstr;

class StoppedService : public ::testing::Test {
 protected:
  StoppedService() {
    auto session = client::Session::Open({.socket = under_.socket()});
    SLUICE_CHECK_OK(session.status());
    session_ = *std::move(session);
    session_->OnEvent([this](const SessionEvent& event) {
      const MutexLock lock(mutex_);
      events_.push_back(event);
    });
  }
  ~StoppedService() override { session_->OnEvent(nullptr); }

  std::vector<SessionEvent> Events() {
    const MutexLock lock(mutex_);
    return events_;
  }
  // Waits for the event that ends the session; fails the test after 20 s.
  SessionEvent Last() {
    for (const absl::Time late = absl::Now() + absl::Seconds(20);
         absl::Now() < late; absl::SleepFor(absl::Milliseconds(5))) {
      const auto events = Events();
      if (!events.empty() && events.back().kind == Kind::kDisconnected) {
        return events.back();
      }
    }
    ADD_FAILURE() << under_.Log();
    return {};
  }

  UnderKeeper under_;
  std::unique_ptr<client::Session> session_;

 private:
  Mutex mutex_;
  std::vector<SessionEvent> events_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(StoppedService, ARankIsToldThatTheServiceWasStopped) {
  EXPECT_TRUE(under_.End());
  EXPECT_EQ(Last().detail, "sluiced was stopped");
  ASSERT_EQ(Events().size(), 2u);
  EXPECT_EQ(Events()[0].kind, Kind::kShuttingDown);
  EXPECT_EQ(Events()[0].detail, "sluiced was stopped");
  EXPECT_THAT(session_->LeaseHost(KiB(64)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("sluiced was stopped")));
}

TEST_F(StoppedService, ADaemonThatEndsUnderAKeeperEndsNoSession) {
  const pid_t earlier = under_.daemon();
  kill(earlier, SIGTERM);
  under_.daemon(/*other_than=*/earlier);
  EXPECT_THAT(session_->LeaseHost(KiB(64)), IsOk());
  EXPECT_TRUE(Events().empty());
}

TEST_F(StoppedService, TheClosedSocketTellsARankThatTheServiceWasKilled) {
  under_.KillKeeper();
  under_.KillDaemon();
  EXPECT_EQ(Last().detail,
            "sluiced was stopped on this node, which ends its sessions");
  EXPECT_EQ(Events().size(), 1u);
}

}  // namespace
}  // namespace sluice::testing
