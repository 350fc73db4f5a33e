// Tests that a client that connects between two daemons waits for the second.
// The keeper stores the session socket, or systemd made it (socket activation).
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "daemon/store/starter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// The name of the .socket unit's descriptor, which is passed at each start. No
// stored descriptor has this name.
constexpr char kUnit[] = "sluiced.socket";

class SessionSocket : public ::testing::Test {
 protected:
  void HandOn(const std::string& path) {
    auto made = wire::Listen(path, 0666);
    SLUICE_CHECK_OK(made.status());
    daemon_.Put(kUnit, *std::move(made));
  }
  void End() {
    ASSERT_GT(daemon_.pid(), 0);
    ASSERT_EQ(kill(daemon_.pid(), SIGTERM), 0);
    ASSERT_EQ(daemon_.Join(), 0);
  }
  void EndService() {
    ASSERT_GT(daemon_.pid(), 0);
    const sigval ends = {.sival_int = daemon::kEndsService};
    ASSERT_EQ(sigqueue(daemon_.pid(), SIGTERM, ends), 0);
    ASSERT_EQ(daemon_.Join(), 0);
  }
  // Connects a client, starts the next daemon, and expects its answer.
  void ExpectWaits() {
    auto waits = RawClient::Connect(daemon_.socket());
    ASSERT_THAT(waits, IsOk());
    daemon_.Start();
    EXPECT_THAT(waits->Observe(), IsOk());
  }

  KeptDaemon daemon_;
};

TEST_F(SessionSocket, TheSocketStaysWhenAnIdleDaemonIsTerminated) {
  daemon_.Start();
  End();
  EXPECT_TRUE(daemon_.Has("listener"));
  EXPECT_EQ(daemon_.Count(""), 1);
  ExpectWaits();
  End();
  ExpectWaits();
}

TEST_F(SessionSocket, TheSocketIsRemovedWithTheService) {
  daemon_.Start();
  EndService();
  EXPECT_EQ(daemon_.Count(""), 0);
  EXPECT_FALSE(std::filesystem::exists(daemon_.socket()));
}

// Guards against a start that is refused because "another daemon serves".
TEST_F(SessionSocket, ASocketUnitsSocketOutlivesEveryDaemon) {
  HandOn(daemon_.socket());
  const auto before = std::filesystem::last_write_time(daemon_.socket());
  ExpectWaits();
  End();
  ExpectWaits();
  daemon_.Kill();
  ExpectWaits();
  RawClient rank = AttachedWithMemory(daemon_);
  End();
  ExpectWaits();
  ExpectKept(daemon_, rank);
  EndService();
  EXPECT_EQ(daemon_.Count(""), 1);
  ExpectWaits();
  EXPECT_EQ(std::filesystem::last_write_time(daemon_.socket()), before);
}

// This is an upgrade of a daemon that had no .socket unit.
TEST_F(SessionSocket, ASocketUnitsSocketReplacesAnEarlierDaemonsOwn) {
  daemon_.Start();
  RawClient rank = AttachedWithMemory(daemon_);
  End();
  RawClient waits = Connected(daemon_);
  std::filesystem::remove(daemon_.socket());
  HandOn(daemon_.socket());
  ExpectWaits();
  EXPECT_THAT(waits.Observe(), IsOk());
  ExpectKept(daemon_, rank);
  daemon_.Kill();
  ExpectWaits();
}

// The .socket unit is removed under a daemon with a rank.
TEST_F(SessionSocket, TheDaemonMakesTheSocketOnceTheSocketUnitIsGone) {
  HandOn(daemon_.socket());
  daemon_.Start();
  RawClient rank = AttachedWithMemory(daemon_);
  End();
  daemon_.Lose(kUnit);
  std::filesystem::remove(daemon_.socket());
  daemon_.Start();
  EXPECT_THAT(Connected(daemon_).Observe(), IsOk());
  ExpectKept(daemon_, rank);
}

TEST_F(SessionSocket, ASocketWithAnotherPathEndsTheStart) {
  HandOn(daemon_.File("other.sock"));
  EXPECT_EQ(daemon_.StartThatFails(), 2);
  EXPECT_THAT(daemon_.Log(), HasSubstr("'sluiced.socket', which listens"));
  EXPECT_TRUE(std::filesystem::exists(daemon_.File("other.sock")));
}

TEST_F(SessionSocket, ASocketWithARemovedPathIsReportedAndNotReplaced) {
  HandOn(daemon_.socket());
  std::filesystem::remove(daemon_.socket());
  daemon_.Start();
  EXPECT_TRUE(daemon_.WaitForLog("no client can connect")) << daemon_.Log();
  EXPECT_FALSE(std::filesystem::exists(daemon_.socket()));
}

TEST(FrozenSessionSocket, ASocketUnitsSocketReportsTheReasonAndStays) {
  KeptDaemon daemon("[restart]\nfreeze_after = 1\n");
  auto made = wire::Listen(daemon.socket(), 0666);
  ASSERT_THAT(made, IsOk());
  daemon.Put(kUnit, *std::move(made));
  daemon.Start();
  daemon.KillAndStart();
  EXPECT_THAT(Connected(daemon).Observe(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("sluiced is frozen")));
  const sigval ends = {.sival_int = daemon::kEndsService};
  ASSERT_EQ(sigqueue(daemon.pid(), SIGTERM, ends), 0);
  ASSERT_EQ(daemon.Join(), 0);
  EXPECT_TRUE(std::filesystem::exists(daemon.socket()));
  RawClient waits = Connected(daemon);
  daemon.Start();
  EXPECT_THAT(waits.Observe(), IsOk());
}

// Returns the pid of the keeper's daemon, or 0 if no daemon runs.
pid_t ChildOf(pid_t keeper) {
  const std::string number = std::to_string(keeper);
  std::ifstream file("/proc/" + number + "/task/" + number + "/children");
  pid_t child = 0;
  file >> child;
  return child;
}

TEST(KeptSessionSocket, NoClientIsRefusedWhileTheIdleDaemonIsReplaced) {
  RunningDaemon daemon("", {.kept = true});
  std::atomic<bool> ends = false;
  std::atomic<int> answered = 0;
  absl::Status refused;
  std::thread comes([&] {
    while (!ends && refused.ok()) {
      auto client = RawClient::Connect(daemon.socket());
      refused = client.status();
      // A client without an answer asks the next daemon, as libsluice does.
      if (client.ok() && client->Observe().ok()) ++answered;
    }
  });
  pid_t before = 0;
  for (int i = 0; i < 5; ++i) {
    const absl::Time late = absl::Now() + absl::Seconds(30);
    const int then = answered;
    pid_t now = 0;
    while ((now == 0 || now == before || answered < then + 3) &&
           absl::Now() < late) {
      absl::SleepFor(absl::Milliseconds(2));
      now = ChildOf(daemon.pid());
    }
    ASSERT_NE(now, 0);
    ASSERT_NE(now, before);
    ASSERT_EQ(kill(now, SIGTERM), 0);
    before = now;
  }
  ends = true;
  comes.join();
  EXPECT_THAT(refused, IsOk());
  EXPECT_GE(answered, 15);
}

}  // namespace
}  // namespace sluice::testing
