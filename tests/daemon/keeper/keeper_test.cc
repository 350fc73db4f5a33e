// Runs real processes: sluiced-keeper, a daemon that only stores descriptors,
// and the daemon's peers.
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/store/descriptor_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "tests/daemon/keeper/peer.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::BinaryPath;
using sluice::testing::Child;
using sluice::testing::ChildResult;
using sluice::testing::IsOk;
using ::testing::HasSubstr;

std::vector<pid_t> ChildrenOf(pid_t keeper) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", keeper, keeper));
  return {std::istream_iterator<pid_t>(file), {}};
}

// Returns the keeper's first child, or 0 if it has none. SO_PEERCRED of a
// connection would name the first daemon, which called listen on the kept
// socket.
pid_t ChildOf(pid_t keeper) {
  const std::vector<pid_t> children = ChildrenOf(keeper);
  return children.empty() ? 0 : children.front();
}

int Starts(const std::string& log) {
  int starts = 0;
  for (size_t at = 0; (at = log.find("started sluiced", at)) != log.npos; ++at)
    ++starts;
  return starts;
}

class Keeper : public ::testing::Test {
 protected:
  void TearDown() override {
    if (keeper_) End(SIGTERM);
  }

  std::vector<std::string> Command(
      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {BinaryPath("sluiced-keeper"),
                                     "--runtime-dir", folder_.path(),
                                     "--program", BinaryPath("storing-daemon")};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  void Start(const std::vector<std::string>& more = {}) {
    keeper_ = Child::Spawn(Command(more));
  }
  ChildResult End(int signal) {
    keeper_->Kill(signal);
    const ChildResult result = keeper_->Join(absl::Seconds(20));
    keeper_.reset();
    return result;
  }
  std::string Socket() const { return folder_.File("test.sock"); }

  static pid_t DaemonOf(Peer& peer) { return std::stoi(peer.Ask("pid")); }
  // Kills the peer's daemon. The next daemon answers later requests.
  static void KillDaemonOf(Peer& peer) { kill(DaemonOf(peer), SIGKILL); }

  testing::TempDir folder_;
  std::unique_ptr<Child> keeper_;
};

TEST_F(Keeper, NoPeerNoticesTwentyDeathsAtRandomMoments) {
  Start();
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 8; ++i) {
    peers.push_back(std::make_unique<Peer>(Socket()));
    EXPECT_EQ(peers.back()->greeting(), "peer " + std::to_string(i));
  }
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  for (int death = 0; death < 20; ++death) {
    const pid_t daemon = DaemonOf(*peers[0]);
    const auto moment = absl::Microseconds(random() % 3000);
    std::thread killer([&] {
      Sleep(moment);
      kill(daemon, SIGKILL);
    });
    // Some requests are sent before the daemon dies, some while no daemon runs.
    for (int round = 0; round < 5; ++round) {
      for (const auto& peer : peers) peer->Send("echo x");
      for (const auto& peer : peers) EXPECT_EQ(peer->Answer(), "echo x");
    }
    killer.join();
    for (const auto& peer : peers) peer->Send("echo y");
    for (const auto& peer : peers) EXPECT_EQ(peer->Answer(), "echo y");
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    const std::string number = std::to_string(i);
    EXPECT_EQ(peers[i]->Ask("text"), "text of " + number);
    EXPECT_EQ(peers[i]->Ask("peer " + number), "lives");
  }
  EXPECT_EQ(peers[0]->Ask("count"), "24");
}

TEST_F(Keeper, DeadDaemonsAreReapedDuringALongPauseBeforeARestart) {
  Start({"--", "--die"});
  std::set<pid_t> seen;
  std::vector<pid_t> children;
  for (int look = 0; look < 10'000; ++look) {
    children = ChildrenOf(keeper_->pid());
    EXPECT_LE(children.size(), 2);  // a dead daemon and the next
    seen.insert(children.begin(), children.end());
    // After several deaths the keeper delays the next start.
    if (seen.size() > 7 && children.empty()) break;
    Sleep(absl::Milliseconds(1));
  }
  EXPECT_THAT(children, ::testing::IsEmpty());
}

TEST_F(Keeper, AStoredPidfdShowsThatItsPeerEnded) {
  Start();
  Peer other(Socket());
  const auto peer = Child::Fork([&] {
    const Peer mine(Socket());
    std::puts(mine.greeting().c_str());
    std::fflush(stdout);
    pause();
  });
  ASSERT_TRUE(peer->WaitForOutput("peer 1", absl::Seconds(10)));
  KillDaemonOf(other);
  EXPECT_EQ(other.Ask("peer 1"), "lives");
  peer->Kill(SIGKILL);
  peer->Join();
  KillDaemonOf(other);
  EXPECT_EQ(other.Ask("peer 1"), "ended");
}

TEST_F(Keeper, AThousandDescriptorsComeBackAndRemovedOnesDoNot) {
  Start();
  Peer peer(Socket());
  ASSERT_EQ(peer.Ask("fill 1000"), "filled");
  std::vector<double> ms;
  for (int i = 0; i < 4; ++i) {  // the sixth death would cause a delay
    const pid_t daemon = DaemonOf(peer);
    const absl::Time before = Now();
    kill(daemon, SIGKILL);
    ASSERT_EQ(peer.Ask("count"), "1003");
    ms.push_back(absl::ToDoubleMilliseconds(Now() - before));
  }
  EXPECT_EQ(peer.Ask("wrong"), "0");
  std::sort(ms.begin(), ms.end());
  std::printf(
      "1,003 descriptors, SIGKILL to the first answer: median %.1f ms, "
      "longest %.1f ms\n",
      ms[ms.size() / 2], ms.back());
  ASSERT_EQ(peer.Ask("drop"), "dropped");
  KillDaemonOf(peer);
  EXPECT_EQ(peer.Ask("count"), "3");
  EXPECT_EQ(peer.Ask("has x-0"), "no");
}

TEST_F(Keeper, TheLastDescriptorsOfADeadDaemonAreHeld) {
  Start();
  Peer peer(Socket());
  const pid_t daemon = DaemonOf(peer);
  keeper_->Kill(SIGSTOP);
  ASSERT_EQ(peer.Ask("put 5"), "put");
  Sleep(absl::Seconds(2));  // so that the keeper's queue fills
  kill(daemon, SIGKILL);
  keeper_->Kill(SIGCONT);
  EXPECT_EQ(peer.Ask("count"), "8");
  EXPECT_EQ(peer.Ask("wrong"), "0");
}

TEST_F(Keeper, OnlyTheDaemonMayStore) {
  Start();
  Peer peer(Socket());
  const auto socket = NotifySocket::Make(folder_.File("keeper.sock"));
  ASSERT_THAT(socket, IsOk());
  const absl::Time soon = Now() + absl::Seconds(5);
  ASSERT_THAT((*socket)->Send("FDSTORE=1\nFDNAME=evil", soon, 0), IsOk());
  ASSERT_THAT((*socket)->Send("FDSTOREREMOVE=1\nFDNAME=m-0", soon), IsOk());
  // The keeper refuses the messages, and closes the barrier's descriptor.
  EXPECT_THAT((*socket)->Barrier(soon), IsOk());
  KillDaemonOf(peer);
  EXPECT_EQ(peer.Ask("has evil"), "no");
  EXPECT_EQ(peer.Ask("text"), "text of 0");
  EXPECT_THAT(End(SIGTERM).err, HasSubstr("is not the daemon"));
}

TEST_F(Keeper, AKeeperHoldsAtMostTheConfiguredNumber) {
  Start({"--max-descriptors", "10"});
  Peer peer(Socket());
  EXPECT_THAT(peer.Ask("fill 100"),
              HasSubstr("the descriptor store is full: it holds 10 of 10"));
  KillDaemonOf(peer);
  EXPECT_EQ(peer.Ask("count"), "10");
}

TEST_F(Keeper, ASecondKeeperIsRefused) {
  Start();
  Peer peer(Socket());
  const ChildResult second = Child::Spawn(Command())->Join();
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("error: another sluiced-keeper runs in"));
  EXPECT_EQ(peer.Ask("echo x"), "echo x");
}

TEST_F(Keeper, CtrlCAndSigtermLeaveNoProcessAndNoFile) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Start();
    pid_t daemon = 0;
    {
      Peer peer(Socket());
      daemon = DaemonOf(peer);
      ASSERT_EQ(peer.Ask("fill 10"), "filled");
      const ChildResult result = End(signal);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.err, HasSubstr("13 descriptors are given up"));
    }
    EXPECT_EQ(kill(daemon, 0), -1);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

TEST_F(Keeper, ADaemonThatDoesNotEndIsKilled) {
  Start();
  Peer peer(Socket());
  const pid_t daemon = DaemonOf(peer);
  kill(daemon, SIGSTOP);
  const ChildResult result = End(SIGTERM);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("did not end within 5 s: killed"));
  EXPECT_EQ(kill(daemon, 0), -1);
}

// An administrator ends the daemon by SIGTERM to start a new binary.
TEST_F(Keeper, ADaemonThatEndsByItselfIsStartedAgain) {
  Start();
  Peer peer(Socket());
  const pid_t first = DaemonOf(peer);
  kill(first, SIGTERM);
  peer.Send("pid");
  EXPECT_NE(peer.Answer(), "");
  EXPECT_EQ(peer.Ask("text"), "text of 0");
  EXPECT_NE(DaemonOf(peer), first);
  const std::string log = End(SIGTERM).err;
  EXPECT_THAT(log, HasSubstr("exited with status 0; 3 descriptors are held"));
}

TEST_F(Keeper, TheDaemonsExitStatusForBadInputIsPassedOn) {
  Start({"--", "--refuse"});
  const ChildResult result = keeper_->Join(absl::Seconds(10));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("exited with status 2"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(Keeper, RestartsAfterManyDeathsAreDelayedAndLoggedOnce) {
  // Redirects the log to stdout, which the test can read while the keeper runs.
  std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"};
  const std::vector<std::string> command = Command({"--", "--die"});
  argv.insert(argv.end(), command.begin(), command.end());
  const absl::Time begin = absl::Now();
  keeper_ = Child::Spawn(argv);
  while (Starts(keeper_->output()) < 10 &&
         absl::Now() - begin < absl::Minutes(1)) {
    Sleep(absl::Milliseconds(5));
  }
  EXPECT_GE(Starts(keeper_->output()), 10) << keeper_->output();
  // The keeper pauses 50 ms before the seventh start, and then twice as long
  // each time.
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(750));
  const std::string log = End(SIGTERM).out;
  const size_t said = log.find("from now on it is started again");
  ASSERT_NE(said, log.npos) << log;
  EXPECT_EQ(log.find("from now on", said + 1), log.npos) << log;
}

TEST_F(Keeper, AUsageErrorIsOneLine) {
  const auto error = [&](const std::vector<std::string>& more) {
    const ChildResult result = Child::Spawn(Command(more))->Join();
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
    return result.err;
  };
  EXPECT_THAT(error({"--max-descriptors", "0"}), HasSubstr("must be from 1"));
  EXPECT_THAT(error({"--max-descriptors", "1M"}), HasSubstr("must be from 1"));
  EXPECT_THAT(error({"--max-descriptor", "9"}), HasSubstr("did you mean"));
  const ChildResult none =
      Child::Spawn({BinaryPath("sluiced-keeper"), "--runtime-dir",
                    folder_.path(), "--program", "/nonexistent"})
          ->Join();
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("cannot run /nonexistent"));
}

class KeeperOfSluiced : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Connect(socket_)); }
  // Kills the daemon, and returns the pid of the next one.
  pid_t SecondDaemon() {
    const pid_t first = ChildOf(keeper_->pid());
    kill(first, SIGKILL);
    pid_t second = first;
    for (int i = 0; i < 10'000 && (second == first || second == 0); ++i) {
      Sleep(absl::Milliseconds(1));
      second = ChildOf(keeper_->pid());
    }
    EXPECT_NE(second, first);
    return second;
  }
  void ExpectEndsInOrder(pid_t daemon) {
    keeper_->Kill(SIGTERM);
    const ChildResult result = keeper_->Join(absl::Seconds(10));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(kill(daemon, 0), -1);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }

  const testing::TempDir folder_;
  const std::string socket_ = folder_.File("session.sock");
  const std::unique_ptr<Child> keeper_ =
      Child::Spawn({BinaryPath("sluiced-keeper"), "--runtime-dir",
                    folder_.path(), "--", "--driver", "sim"});
};

TEST_F(KeeperOfSluiced, AKeeperStartsSluicedAgainAndEndsWithIt) {
  const pid_t second = SecondDaemon();
  EXPECT_TRUE(Connect(socket_));
  ExpectEndsInOrder(second);
}

// Guards against a signal that ends the new daemon before it handles signals:
// the sockets and the lock would be left.
TEST_F(KeeperOfSluiced, ASignalRightAfterARestartReachesTheNewDaemon) {
  ExpectEndsInOrder(SecondDaemon());
}

}  // namespace
}  // namespace sluice::daemon
