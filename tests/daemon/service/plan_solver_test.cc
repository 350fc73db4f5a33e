// Ends of the plan worker that nobody waits for.
#include "daemon/service/plan_solver.h"

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;

// The number in the file, once it is there.
pid_t PidIn(const std::string& path) {
  for (int tries = 0; tries < 500; ++tries) {
    pid_t pid = 0;
    if (std::ifstream(path) >> pid) return pid;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return 0;
}

// Wrong once: such a worker ran on after the daemon.
TEST(PlanSolver, WorkerWhoseStartTheLoopNeverHeardOfEndsAtShutdown) {
  testing::TempDir directory;
  const std::string worker = directory.File("worker");
  const std::string pid_file = directory.File("pid");
  std::ofstream(worker) << "#!/bin/sh\necho $$ >" << pid_file
                        << "\nexec sleep 60\n";
  ASSERT_EQ(chmod(worker.c_str(), 0700), 0);

  MonotonicClock clock;
  auto loop = Loop::Make(&clock);  // never runs
  ASSERT_THAT(loop, IsOk());
  auto codec = std::make_unique<TaskThread>("codec");
  auto solver = std::make_unique<PlanSolver>(
      loop->get(), codec.get(), worker,
      [](PlanRoundId, absl::StatusOr<plan::NodePlan>, std::vector<KeyedUnit>) {
        FAIL();
      });
  SolvePlan question;
  question.round = PlanRoundId(1);
  question.time_limit = absl::Seconds(60);
  solver->Solve(std::move(question));
  const pid_t pid = PidIn(pid_file);
  ASSERT_GT(pid, 0);

  // As Service ends.
  codec.reset();
  solver.reset();
  loop->reset();
  EXPECT_EQ(kill(pid, 0), -1) << "the worker still runs";
  EXPECT_EQ(errno, ESRCH);
}

}  // namespace
}  // namespace sluice::daemon
