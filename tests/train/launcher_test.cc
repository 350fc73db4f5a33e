// Tests the launcher, with shell scripts as its ranks.
#include "client/train/launch/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "client/train/launch/outcome.h"
#include "proto/base/spawn.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::train {
namespace {

using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::sluice::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Launches `script` on `ranks` ranks from a child process.
std::unique_ptr<Child> LaunchScript(int ranks, const std::string& script,
                                    bool json = false) {
  return Child::Fork([=] {
    RunOptions options;
    options.ranks = ranks;
    options.json = json;
    HoldSignals();
    const int status = Launch(options, "/bin/sh", {"-c", script}, "");
    std::fflush(stdout);
    _exit(status);
  });
}

bool Exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

// Waits until both ranks have created `file`. They create "up" once their traps
// are set.
void AwaitRanks(const TempDir& dir, const std::string& file = "up") {
  while (!Exists(dir.File(file + "0")) || !Exists(dir.File(file + "1"))) {
    absl::SleepFor(absl::Milliseconds(10));
  }
}

// Launches two ranks that save and end on `signal`, and write `interrupted`
// into their results.
std::unique_ptr<Child> LaunchStoppable(const TempDir& dir,
                                       const std::string& signal,
                                       const std::string& interrupted) {
  auto launcher = LaunchScript(
      2, "trap 'sleep 0.2; touch " + dir.path() +
             "/saved$RANK; echo \"{\\\"exit\\\":0,\\\"interrupted\\\":" +
             interrupted + "}\" > $SLUICE_RESULT_FILE; exit 0' " + signal +
             "; touch " + dir.path() +
             "/up$RANK; while :; do sleep 0.05; done");
  AwaitRanks(dir);
  return launcher;
}

pid_t RunScript(
    const std::string& script,
    const std::vector<std::pair<std::string, std::string>>& added = {}) {
  const auto pid =
      Spawn({"/bin/sh", "-c", script}, {.environment = EnvironmentWith(added)});
  SLUICE_CHECK_OK(pid.status());
  return *pid;
}

TEST(Process, IsAwaitedUntilItsEndOrTheLimit) {
  const pid_t slow = RunScript("sleep 0.5; exit 3");
  EXPECT_EQ(WaitFor(slow, absl::Milliseconds(1)), std::nullopt);
  const auto ended = WaitFor(slow, absl::Seconds(60));
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(DescribeWaitStatus(*ended), "exit status 3");
}

TEST(Process, IsKilledIfItIgnoresSigterm) {
  const TempDir dir;
  const pid_t deaf =
      RunScript("trap '' TERM; touch " + dir.path() + "/up0 " + dir.path() +
                "/up1; while :; do sleep 0.02; done");
  AwaitRanks(dir);
  EXPECT_FALSE(IsStopped(deaf));
  kill(deaf, SIGSTOP);
  while (!IsStopped(deaf)) absl::SleepFor(absl::Milliseconds(5));
  kill(deaf, SIGCONT);
  EndProcess(deaf, absl::Milliseconds(50));
  EXPECT_EQ(kill(deaf, 0), -1) << "the process is killed and reaped";
}

TEST(Process, AnAddedVariableReplacesOnlyItsNamesake) {
  setenv("SLUICE_A", "1", 1);
  setenv("SLUICE_AB", "2", 1);
  const pid_t child = RunScript(
      "test $SLUICE_AB = 2 -a $SLUICE_C = 4 -a \"$(env | grep ^SLUICE_A=)\" = "
      "SLUICE_A=3",
      {{"SLUICE_A", "3"}, {"SLUICE_C", "4"}});
  EXPECT_EQ(WaitFor(child, absl::Seconds(60)), 0);
}

TEST(Launcher, EachRankKnowsItsPlace) {
  const TempDir dir;
  const auto launcher = LaunchScript(
      3,
      "test $WORLD_SIZE = 3 -a $LOCAL_RANK = $RANK -a "
      "$MASTER_ADDR = 127.0.0.1 -a $MASTER_PORT -gt 1023 && touch " +
          dir.path() + "/$RANK");
  EXPECT_EQ(launcher->Join().exit_code, kExitOk);
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_TRUE(Exists(dir.File(rank))) << rank;
  }
}

TEST(Launcher, ADeadRankEndsTheOthersAndIsNamed) {
  const absl::Time start = absl::Now();
  // The other ranks ignore SIGTERM, like a rank that is stuck in a collective.
  const auto launcher =
      LaunchScript(3,
                   "trap '' TERM; if [ $RANK = 1 ]; then kill -9 $$; fi; "
                   "while :; do sleep 0.1; done");
  const ChildResult result = launcher->Join(absl::Seconds(20));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  EXPECT_EQ(result.exit_code, kExitFault);
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: rank 1 ended with signal 9"),
                                Not(HasSubstr("rank 0"))));
}

TEST(Launcher, BlamesTheFirstCauseAndNotItsVictims) {
  // Rank 0 ends first, but reports that it only lost a peer.
  const auto launcher = LaunchScript(2, R"(
    if [ $RANK = 0 ]; then
      echo '{"exit":1,"message":"lost","caused_by_peer":true}' \
          > $SLUICE_RESULT_FILE; exit 1
    fi
    sleep 0.1
    echo '{"exit":3,"message":"no room","limited_by":"gpu_memory",
           "report":"{\"fits\":false}"}' > $SLUICE_RESULT_FILE
    exit 3)",
                                     /*json=*/true);
  const ChildResult result = launcher->Join(absl::Seconds(20));
  EXPECT_EQ(result.exit_code, kExitDoesNotFit);
  EXPECT_THAT(result.err, HasSubstr("error: rank 1: no room"));
  EXPECT_THAT(result.out, HasSubstr("{\"fits\":false}"));
}

// If all other ranks report a lost peer, the launcher must not blame the rank
// that it ended itself.
TEST(Launcher, ARankThatTheLauncherEndsIsNotTheCause) {
  const auto launcher = LaunchScript(2, R"(
    test $RANK = 1 || exec sleep 30
    echo '{"exit":1,"message":"lost","caused_by_peer":true}' \
        > $SLUICE_RESULT_FILE; exit 1)");
  const ChildResult result = launcher->Join(absl::Seconds(20));
  EXPECT_EQ(result.exit_code, kExitFault);
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: rank 1: lost"),
                                Not(HasSubstr("signal 15"))));
}

TEST(Launcher, ARankThatEndsBadlyAfterItsResultIsNamed) {
  const auto launcher = LaunchScript(2, R"(
    echo '{"exit":0,"message":""}' > $SLUICE_RESULT_FILE
    test $RANK = 0 || exit 86)");
  const ChildResult result = launcher->Join(absl::Seconds(20));
  EXPECT_EQ(result.exit_code, kExitFault);
  EXPECT_THAT(result.err, HasSubstr("error: rank 1 ended with exit status 86"));
}

TEST(Launcher, CtrlCIsForwardedAndTheRanksMaySave) {
  const TempDir dir;
  const auto launcher = LaunchStoppable(dir, "INT", "true");
  launcher->Kill(SIGINT);
  EXPECT_EQ(launcher->Join(absl::Seconds(20)).exit_code, 130);
  EXPECT_TRUE(Exists(dir.File("saved0")));
  EXPECT_TRUE(Exists(dir.File("saved1")));
}

TEST(Launcher, ARunThatIsDoneWhenTheSignalComesIsNotInterrupted) {
  const TempDir dir;
  const auto launcher = LaunchStoppable(dir, "INT", "false");
  launcher->Kill(SIGINT);
  EXPECT_EQ(launcher->Join(absl::Seconds(20)).exit_code, kExitOk);
  EXPECT_TRUE(Exists(dir.File("saved0")));
}

TEST(Launcher, RepeatedHangupsLetTheRanksSaveAndEnd) {
  const TempDir dir;
  const auto launcher = LaunchStoppable(dir, "HUP", "true");
  launcher->Kill(SIGHUP);
  absl::SleepFor(absl::Milliseconds(20));
  launcher->Kill(SIGHUP);
  EXPECT_EQ(launcher->Join(absl::Seconds(20)).exit_code, 130);
  EXPECT_TRUE(Exists(dir.File("saved1")));
}

TEST(Launcher, ASecondCtrlCKillsAndBlamesNoRank) {
  const TempDir dir;
  const auto launcher = LaunchScript(
      2, "trap 'touch " + dir.path() + "/told$RANK' INT; touch " + dir.path() +
             "/up$RANK; while :; do sleep 0.05; done");
  AwaitRanks(dir);
  launcher->Kill(SIGINT);
  AwaitRanks(dir, "told");  // two signals at once count as one
  launcher->Kill(SIGINT);
  const ChildResult result = launcher->Join(absl::Seconds(20));
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("error: interrupted"), Not(HasSubstr("rank"))));
}

}  // namespace
}  // namespace sluice::train
