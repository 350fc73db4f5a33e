// Runs the user's programs against a real daemon: the C example and sluicectl.
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "proto/base/mutex.h"
#include "tests/integration/client/of_daemon.h"
#include "tests/support/status_matchers.h"
#include "tests/support/whole_lines.h"

namespace sluice::client {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::ChildResult;
using ::sluice::testing::IsOk;
using ::sluice::testing::OpenSession;
using ::sluice::testing::RunningDaemon;
using ::sluice::testing::RunWithSocketOf;
using ::sluice::testing::StatusIs;
using ::sluice::testing::WholeLines;
using ::testing::HasSubstr;

ChildResult RunTool(const RunningDaemon& daemon,
                    std::vector<std::string> arguments) {
  arguments[0] = BinaryPath(arguments[0]);
  return RunWithSocketOf(daemon, arguments);
}

TEST(Tools, TheCExampleCopiesThereAndBack) {
  RunningDaemon daemon;
  const ChildResult result = RunTool(daemon, {"sluice-example-copy"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1048576 bytes went to the GPU and back, 0 "
                                    "differ"));
}

TEST(Tools, StatusAndJobsShowWhatAJobHolds) {
  RunningDaemon daemon;
  const auto session = OpenSession(daemon, "held");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto region, session->LeaseGpu(MiB(5)));
  ASSERT_THAT(
      session->Report({.step = 3, .seconds = 0.5, .tokens = 600, .loss = 1.25}),
      IsOk());
  const ChildResult status = RunTool(daemon, {"sluicectl", "status"});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("driver sim"));
  EXPECT_THAT(status.out, HasSubstr("held"));
  EXPECT_THAT(status.out, HasSubstr("5 MiB"));
  EXPECT_THAT(status.out, HasSubstr("1.2500"));
  const ChildResult jobs = RunTool(daemon, {"sluicectl", "jobs"});
  EXPECT_THAT(jobs.out, HasSubstr("1,200")) << "600 tokens in half a second";
  const ChildResult json = RunTool(daemon, {"sluicectl", "jobs", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"gpu_bytes\":5242880"));
}

TEST(Tools, AfterACrashTheNextDaemonReportsWhatRanksHold) {
  RunningDaemon daemon;
  const auto session = OpenSession(daemon, "held");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto gpu, session->LeaseGpu(MiB(5)));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto host, session->LeaseHost(MiB(3)));
  daemon.process().Kill(SIGKILL);
  daemon.process().Join();
  const auto next = Child::Spawn({BinaryPath("sluiced"), "--runtime-dir",
                                  daemon.runtime_dir(), "--config",
                                  daemon.runtime_dir() + "/sluiced.toml"});
  ASSERT_TRUE(next->WaitForOutput("sluiced: ready", absl::Seconds(10)));
  const ChildResult status = RunTool(daemon, {"sluicectl", "status"});
  const char* const held =
      " are held outside leases, by processes without a session, such as ranks "
      "of a daemon that was killed: free when they end";
  const std::string told = WholeLines(status.out);
  EXPECT_THAT(told, HasSubstr("HELD OUTSIDE (seen "));
  EXPECT_THAT(told, HasSubstr(std::string("gpu 0: 5 MiB") + held));
  EXPECT_THAT(told, HasSubstr(std::string("numa 0: 3 MiB") + held));
  EXPECT_THAT(status.out, ::testing::Not(HasSubstr("gpu 1: ")));
  const ChildResult budget = RunTool(daemon, {"sluicectl", "budget"});
  EXPECT_THAT(WholeLines(budget.out),
              HasSubstr(std::string("gpu 0: 5 MiB") + held));
  next->Kill(SIGTERM);
  EXPECT_THAT(
      next->Join().err,
      HasSubstr(
          "warning start: GPU 0: of 36 MiB, 5 MiB are held outside leases"));
}

TEST(Tools, AnAdministratorSetsABudgetThatHoldsAtOnce) {
  RunningDaemon daemon;
  const ChildResult set = RunTool(daemon, {"sluicectl", "budget", "set",
                                           "--job", "tune", "--gpu", "10MiB"});
  EXPECT_EQ(set.exit_code, 0) << set.err;
  EXPECT_EQ(set.out, "job tune: GPU memory 10 MiB, host memory unlimited\n");
  const auto session = OpenSession(daemon, "tune");
  EXPECT_THAT(
      session->LeaseGpu(MiB(11)),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("10 MiB")));
  EXPECT_THAT(session->LeaseGpu(MiB(10)), IsOk());
}

// Guards against a limit that is not listed before a job uses it.
TEST(Tools, EveryLimitIsListedWithItsOrigin) {
  RunningDaemon daemon(
      "[budgets]\nprincipal_host_bytes = \"300MiB\"\n"
      "[[budgets.job]]\nname = \"night\"\ngpu_bytes = \"8MiB\"\n");
  ASSERT_EQ(RunTool(daemon, {"sluicectl", "budget", "set", "--job", "tune",
                             "--gpu", "10MiB"})
                .exit_code,
            0);
  const ChildResult budget = RunTool(daemon, {"sluicectl", "budget"});
  EXPECT_EQ(budget.exit_code, 0) << budget.err;
  EXPECT_THAT(budget.out,
              ::testing::ContainsRegex("every user +unlimited +300 MiB +"
                                       "configuration"));
  EXPECT_THAT(budget.out, ::testing::ContainsRegex(
                              "job night +8 MiB +unlimited +configuration"));
  const passwd* self = getpwuid(getuid());
  const std::string name = self != nullptr ? self->pw_name : "";
  EXPECT_THAT(budget.out,
              ::testing::ContainsRegex("job tune +10 MiB +unlimited +" + name));
  EXPECT_THAT(budget.out, HasSubstr("nobody holds memory"));
  const ChildResult status = RunTool(daemon, {"sluicectl", "status"});
  EXPECT_THAT(
      WholeLines(status.out),
      HasSubstr("job tune: GPU 10 MiB, host unlimited, set by " + name));
}

TEST(Tools, JsonIsOneLineFromEveryCommand) {
  RunningDaemon daemon;
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{
           {"status"},
           {"jobs"},
           {"budget"},
           {"--admin", "status"},
           {"plan", "validate"},
           {"plan", "train", "--model", "llama-8b", "--hardware", "h100-80g",
            "--gpus", "8", "--seq-len", "64K"}}) {
    std::vector<std::string> arguments = {"sluicectl"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    arguments.push_back("--json");
    const ChildResult result = RunTool(daemon, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1)
        << command[0];
    EXPECT_EQ(result.out.back(), '\n');
  }
}

TEST(Tools, StatusAndJobsWorkOverTheAdminSocket) {
  RunningDaemon daemon;
  const auto session = OpenSession(daemon, "held");
  for (const char* what : {"status", "jobs"}) {
    const ChildResult all = RunTool(daemon, {"sluicectl", "--admin", what});
    EXPECT_EQ(all.exit_code, 0) << all.err;
    EXPECT_THAT(all.out, HasSubstr("held"));
  }
}

TEST(Tools, ADrainedNodeGrantsNothingUntilItIsUndrained) {
  RunningDaemon daemon;
  const auto session = OpenSession(daemon, "held");
  const ChildResult drained =
      RunTool(daemon, {"sluicectl", "drain", "--reason", "new driver"});
  EXPECT_EQ(drained.out,
            "the node is drained: nothing new is granted; 1 rank is attached "
            "still\n")
      << drained.err;
  EXPECT_THAT(WholeLines(RunTool(daemon, {"sluicectl", "status"}).out),
              HasSubstr("(new driver): nothing new is granted"));
  EXPECT_THAT(session->LeaseGpu(MiB(1)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the node is drained by ")));
  const ChildResult undrained = RunTool(daemon, {"sluicectl", "undrain"});
  EXPECT_EQ(undrained.out, "the node is not drained any more\n");
  EXPECT_THAT(session->LeaseGpu(MiB(1)), IsOk());
  const ChildResult again = RunTool(daemon, {"sluicectl", "undrain"});
  EXPECT_NE(again.exit_code, 0);
  EXPECT_EQ(again.err, "error: the node is not drained\n");
}

TEST(Tools, AnEvictedRankIsToldWhy) {
  RunningDaemon daemon;
  const auto session = OpenSession(daemon, "tune");
  Mutex mutex;
  std::vector<SessionEvent> events;
  session->OnEvent([&](const SessionEvent& event) {
    const MutexLock lock(mutex);
    events.push_back(event);
  });
  const ChildResult evict = RunTool(
      daemon,
      {"sluicectl", "evict", "tune", "--reason", "the node is drained"});
  EXPECT_EQ(evict.exit_code, 0) << evict.err;
  EXPECT_EQ(evict.out, "job tune: 1 session ended\n");
  EXPECT_THAT(session->LeaseGpu(MiB(1)),
              StatusIs(absl::StatusCode::kUnavailable));
  session->OnEvent(nullptr);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0].kind, SessionEvent::Kind::kEvicted);
  EXPECT_EQ(events[0].detail, "the node is drained");
  const ChildResult again = RunTool(daemon, {"sluicectl", "evict", "nobody"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("nobody"));
}

TEST(Tools, AnUnknownPlanIsRefusedByItsId) {
  RunningDaemon daemon;
  const ChildResult result =
      RunTool(daemon, {"sluicectl", "plan", "show", "99"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("99"));
}

}  // namespace
}  // namespace sluice::client
