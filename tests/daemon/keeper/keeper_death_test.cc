// Tests that a daemon goes on after its keeper was killed.
#include <signal.h>

#include <string>

#include "gtest/gtest.h"
#include "tests/daemon/keeper/peer.h"
#include "tests/support/under_keeper.h"

namespace sluice::daemon {
namespace {

using sluice::testing::UnderKeeper;

class DeadKeeper : public ::testing::Test {
 protected:
  UnderKeeper under_{
      {.program = "storing-daemon", .socket = "test.sock", .more = {}}};
};

TEST_F(DeadKeeper, ADeadKeeperIsReportedOnceAndTheDaemonGoesOn) {
  Peer peer(under_.socket());
  ASSERT_EQ(peer.Ask("fill 100"), "filled");
  const pid_t daemon = under_.daemon();
  under_.KillKeeper();
  EXPECT_EQ(peer.Ask("fill 200"), "filled");
  EXPECT_EQ(peer.Ask("drop"), "dropped");
  EXPECT_TRUE(under_.WaitForLog("the keeper is lost")) << under_.Log();
  EXPECT_EQ(under_.Log().rfind("the keeper is lost"),
            under_.Log().find("the keeper is lost"));
  EXPECT_EQ(under_.daemon(), daemon);
}

// Messages that the keeper has not read are lost, and the daemon does not wait
// for them.
TEST_F(DeadKeeper, ADeadKeeperDelaysNoCallThatItHadNotRead) {
  Peer peer(under_.socket());
  const pid_t keeper = under_.keeper();
  kill(keeper, SIGSTOP);
  peer.Send("fill 5");
  Sleep(absl::Milliseconds(200));  // so that the keeper's queue fills
  const absl::Time before = Now();
  kill(keeper, SIGKILL);
  EXPECT_EQ(peer.Answer(), "filled");
  // less than the timeout for a hanging keeper
  EXPECT_LT(Now() - before, absl::Seconds(4));
}

}  // namespace
}  // namespace sluice::daemon
