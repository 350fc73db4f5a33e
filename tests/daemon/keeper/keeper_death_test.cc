// A keeper that is killed, and the one that comes in its place; the daemon only
// stores, and the test is its peer.
#include <signal.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/keeper/peer.h"
#include "tests/support/child.h"
#include "tests/support/under_keeper.h"

namespace sluice::daemon {
namespace {

using sluice::testing::BinaryPath;
using sluice::testing::Child;
using sluice::testing::ChildResult;
using sluice::testing::UnderKeeper;
using ::testing::HasSubstr;

class DeadKeeper : public ::testing::Test {
 protected:
  DeadKeeper()
      : under_(
            {.program = "storing-daemon", .socket = "test.sock", .more = {}}) {}

  // The next daemon has all that this one has stored: `count` descriptors.
  void ExpectNothingIsLost(Peer& peer, const std::string& count) {
    under_.KillDaemon();
    EXPECT_EQ(peer.Ask("count"), count);
    EXPECT_EQ(peer.Ask("wrong"), "0");
    EXPECT_EQ(peer.Ask("text"), "text of 0");
  }

  UnderKeeper under_;
};

TEST_F(DeadKeeper, AnotherOneHoldsEverythingBeforeAnythingIsStoredAgain) {
  Peer peer(under_.socket());
  ASSERT_EQ(peer.Ask("fill 1000"), "filled");
  const absl::Time before = Now();
  const pid_t dead = under_.KillKeeper();
  ASSERT_EQ(peer.Ask("fill 1001"), "filled");
  std::printf(
      "1,003 descriptors, SIGKILL of the keeper to the first stored "
      "behind it: %.1f ms\n",
      absl::ToDoubleMilliseconds(Now() - before));
  EXPECT_NE(under_.keeper(), dead);
  EXPECT_TRUE(under_.WaitForLog("is the keeper now")) << under_.Log();
  ExpectNothingIsLost(peer, "1004");
}

// Guards against taking a hang-up for an answer: the kernel closes what lies
// unread in a dead keeper's socket.
TEST_F(DeadKeeper, WhatItHadNotReadIsSentToTheNext) {
  Peer peer(under_.socket());
  const pid_t keeper = under_.keeper();
  kill(keeper, SIGSTOP);
  peer.Send("fill 5");
  Sleep(absl::Milliseconds(200));  // they are in the keeper's queue now
  kill(keeper, SIGKILL);
  EXPECT_EQ(peer.Answer(), "filled");
  ExpectNothingIsLost(peer, "8");
}

TEST_F(DeadKeeper, WhatIsRemovedMeanwhileIsNotGivenToTheNext) {
  Peer peer(under_.socket());
  ASSERT_EQ(peer.Ask("fill 10"), "filled");
  under_.KillKeeper();
  ASSERT_EQ(peer.Ask("drop"), "dropped");
  ExpectNothingIsLost(peer, "3");
}

// The next one as soon as it is there, or a little later, while it is filled.
TEST_F(DeadKeeper, TheNextMayBeKilledTooAlsoWhileItIsFilled) {
  Peer peer(under_.socket());
  ASSERT_EQ(peer.Ask("fill 1000"), "filled");
  std::mt19937 random(7);
  pid_t dead = 0;
  for (int i = 0; i < 12; ++i) {
    const pid_t keeper = under_.keeper(dead);
    Sleep(absl::Microseconds(random() % 12'000));
    kill(dead = keeper, SIGKILL);
  }
  ASSERT_EQ(peer.Ask("fill 1001"), "filled");
  ExpectNothingIsLost(peer, "1004");
}

// The daemon finds out before it has begun to serve.
TEST_F(DeadKeeper, ADaemonThatJustStartsHasWhatItWasGiven) {
  Peer peer(under_.socket());
  ASSERT_EQ(peer.Ask("fill 100"), "filled");
  for (int i = 0; i < 10; ++i) {
    under_.daemon(under_.KillDaemon());
    under_.KillKeeper();
    ASSERT_EQ(peer.Ask("count"), "103") << under_.Log();
    ASSERT_EQ(peer.Ask("fill 100"), "filled");
  }
  ExpectNothingIsLost(peer, "103");
}

TEST_F(DeadKeeper, TheNextIsAKeeperLikeAnyOther) {
  Peer peer(under_.socket());
  under_.KillKeeper();
  ASSERT_EQ(peer.Ask("fill 5"), "filled");
  ExpectNothingIsLost(peer, "8");  // by a daemon that is its child
  under_.KillKeeper();
  ASSERT_EQ(peer.Ask("fill 6"), "filled");
  ExpectNothingIsLost(peer, "9");
  EXPECT_TRUE(under_.End()) << under_.Log();
  EXPECT_FALSE(under_.HoldsFiles()) << "files are left in its folder";
}

// SIGTERM, as when the service is stopped.
TEST_F(DeadKeeper, TheNextEndsWithTheDaemonThatItAdopted) {
  Peer peer(under_.socket());
  under_.KillKeeper();
  ASSERT_EQ(peer.Ask("fill 5"), "filled");
  EXPECT_TRUE(under_.End()) << under_.Log();
  EXPECT_FALSE(under_.HoldsFiles()) << "files are left in its folder";
}

TEST_F(DeadKeeper, NobodyIsAdoptedWhoDidNotAskForIt) {
  Peer peer(under_.socket());
  const std::string folder = under_.File("other");
  for (const pid_t pid : {under_.daemon(), pid_t{1}}) {
    const ChildResult other =
        Child::Spawn({BinaryPath("sluiced-keeper"), "--runtime-dir", folder,
                      "--adopt", std::to_string(pid)})
            ->Join();
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, HasSubstr("did not start this one"));
  }
  EXPECT_EQ(peer.Ask("echo x"), "echo x");
}

}  // namespace
}  // namespace sluice::daemon
