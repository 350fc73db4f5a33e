// Tests how many plan workers run at once, and that they end.
#include "daemon/service/plan_solver.h"

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
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

// Waits until the file has a number, and returns it.
pid_t PidIn(const std::string& path) {
  for (int tries = 0; tries < 6000; ++tries) {
    pid_t pid = 0;
    if (std::ifstream(path) >> pid) return pid;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return 0;
}

// Guards against a worker that runs on after the daemon's end.
TEST(PlanSolver, AWorkerWithAnUnreportedStartEndsAtShutdown) {
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
      loop->get(), codec.get(), WorkerOptions{.path = worker},
      [](PlanRoundId, absl::StatusOr<plan::NodePlan>, std::vector<KeyedUnit>) {
        FAIL();
      });
  SolvePlan question;
  question.round = PlanRoundId(1);
  question.time_limit = absl::Seconds(60);
  solver->Solve(std::move(question));
  const pid_t pid = PidIn(pid_file);
  ASSERT_GT(pid, 0);

  // Destroys the parts in Service's order.
  codec.reset();
  solver.reset();
  loop->reset();
  EXPECT_EQ(kill(pid, 0), -1) << "the worker still runs";
  EXPECT_EQ(errno, ESRCH);
}

// Workers write their pids to a file, one per line, and run for a minute.
class PlanSolverTurns : public ::testing::Test {
 protected:
  PlanSolverTurns() {
    pids_ = directory_.File("pids");
    const std::string worker = directory_.File("worker");
    std::ofstream(worker) << "#!/bin/sh\necho $$ >>" << pids_
                          << "\nexec sleep 60\n";
    chmod(worker.c_str(), 0700);
    loop_ = *Loop::Make(&clock_);
    codec_ = std::make_unique<TaskThread>("codec");
    solver_ = std::make_unique<PlanSolver>(
        loop_.get(), codec_.get(), WorkerOptions{.path = worker},
        [](PlanRoundId, absl::StatusOr<plan::NodePlan>,
           std::vector<KeyedUnit>) {});
    loop_->SetTimer([this] { return solver_->NextDeadline(); },
                    [this] { solver_->Expire(); });
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~PlanSolverTurns() override {
    loop_->Stop();
    thread_.join();
    codec_.reset();
    solver_.reset();
  }

  void Do(std::function<void()> task) {
    ASSERT_TRUE(loop_->Call(std::move(task), absl::Seconds(5)));
  }
  void Solve(uint64_t round, uint32_t uid) {
    Do([this, round, uid] {
      SolvePlan question;
      question.round = PlanRoundId(round);
      question.who = {uid, ""};
      question.time_limit = absl::Seconds(60);
      solver_->Solve(std::move(question));
    });
  }
  std::vector<pid_t> Pids() const {
    std::vector<pid_t> pids;
    std::ifstream file(pids_);
    for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
    return pids;
  }
  // Waits until `count` workers were started and a moment longer. Returns all
  // pids.
  std::vector<pid_t> Started(size_t count) const {
    for (int i = 0; i < 500 && Pids().size() < count; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    absl::SleepFor(absl::Milliseconds(100));
    return Pids();
  }
  // Returns whether the signal that hurries a worker is pending. The workers of
  // this test never handle it.
  static bool IsHurried(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("ShdPnd:")) continue;
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGUSR1 - 1) & 1) !=
             0;
    }
    return false;
  }
  static bool IsHurriedSoon(pid_t pid) {
    for (int i = 0; i < 500 && !IsHurried(pid); ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    return IsHurried(pid);
  }

  static bool IsZombie(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    return stat.find(") Z ") != std::string::npos;
  }
  static bool IsZombieSoon(pid_t pid) {
    for (int i = 0; i < 500 && !IsZombie(pid); ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    return IsZombie(pid);
  }

  testing::TempDir directory_;
  std::string pids_;
  MonotonicClock clock_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<TaskThread> codec_;
  std::unique_ptr<PlanSolver> solver_;
  std::thread thread_;
};

// Guards against as many solvers as there are requests.
TEST_F(PlanSolverTurns, ManyRoundsOfOneUserLeaveWorkersForOthers) {
  for (uint64_t round = 1; round <= 10; ++round) Solve(round, 7);
  EXPECT_EQ(Started(PlanSolver::kMostOfAUser).size(),
            static_cast<size_t>(PlanSolver::kMostOfAUser));
  Solve(11, 8);
  EXPECT_EQ(Started(PlanSolver::kMostOfAUser + 1).size(),
            static_cast<size_t>(PlanSolver::kMostOfAUser + 1));
  for (uint32_t uid = 9; uid <= 12; ++uid) Solve(uid + 100, uid);
  EXPECT_EQ(Started(PlanSolver::kMostWorkers).size(),
            static_cast<size_t>(PlanSolver::kMostWorkers));
  // A stopped round makes room for the next one.
  Do([this] { solver_->Stop(PlanRoundId(11)); });
  EXPECT_EQ(Started(PlanSolver::kMostWorkers + 1).size(),
            static_cast<size_t>(PlanSolver::kMostWorkers + 1));
}

TEST_F(PlanSolverTurns, AHurriedRoundIsSignalledAfterItsTurn) {
  Solve(1, 7);
  ASSERT_EQ(Started(1).size(), 1u);
  const pid_t first = Pids()[0];
  absl::SleepFor(PlanSolver::kTurn + absl::Milliseconds(200));
  EXPECT_FALSE(IsHurried(first)) << "no other round waits";
  Do([this] { solver_->Hurry(PlanRoundId(1)); });
  EXPECT_TRUE(IsHurriedSoon(first));
}

// The codec thread, which reaps workers, may be reading a large profile.
TEST_F(PlanSolverTurns, AStoppedWorkerIsKilledAtOnce) {
  Solve(1, 1);
  const std::vector<pid_t> pids = Started(1);
  ASSERT_EQ(pids.size(), 1u);
  std::promise<void> done;
  codec_->Run([over = done.get_future().share()] { over.wait(); });
  Do([this] { solver_->Stop(PlanRoundId(1)); });
  EXPECT_TRUE(IsZombieSoon(pids[0]));
  done.set_value();
}

}  // namespace
}  // namespace sluice::daemon
