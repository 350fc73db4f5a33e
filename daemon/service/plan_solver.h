// Runs the plan worker: a process of its own (posix_spawn, never a bare fork
// of a process with threads), so that a solver that crashes, eats memory or
// does not end takes nothing with it.
//
// How it works. The request goes in as a sealed memfd, the answer comes out
// of a pipe that the loop watches; encoding, decoding and the naive check of
// the plan run on the codec thread. The deadline is the worker's own, and
// policy's a little later (Stop).
//
// Fairness. kMostWorkers run at a time, kMostOfAUser of one user; what waits
// goes by FairQueue, by the seconds that each user's workers have run. While
// something waits, a worker that had its turn (kTurn) is told to write the
// first plan that it has, which is valid, and maybe not proved optimal.
//
// Thread safety: loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/effects.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/progress.h"

namespace sluice::daemon {

struct WorkerOptions {
  std::string path;             // of sluice-worker
  Bytes memory;                 // address space of one; 0: any
  std::optional<uint32_t> uid;  // its user; only a root daemon may set it
  std::optional<uint32_t> gid;
};

class PlanSolver {
 public:
  static constexpr int kMostWorkers = 4;
  static constexpr int kMostOfAUser = 2;
  static constexpr absl::Duration kTurn = absl::Seconds(2);
  // For a round that holds up another user's (JointPlanning::kShare).
  static constexpr absl::Duration kHurriedTurn = absl::Milliseconds(400);

  // Called with the plan and the units that were solved for it.
  using Done = std::function<void(PlanRoundId, absl::StatusOr<plan::NodePlan>,
                                  std::vector<KeyedUnit>)>;

  // `loop` outlives the solver, `codec` ends before it (its tasks use the
  // solver); `done` runs on the loop's thread. Workers are started by the
  // codec thread and end with it, however the daemon ends (PR_SET_PDEATHSIG).
  PlanSolver(Loop* loop, TaskThread* codec, WorkerOptions worker, Done done);
  // Ends running workers. A worker with a start that was not yet posted to the
  // loop ends with the loop.
  ~PlanSolver();

  void Solve(SolvePlan question);
  // The running workers' progress, as they report it.
  std::vector<std::pair<PlanRoundId, plan::PlanProgress>> Progress() const;
  // Kills the worker of a round, if it runs; `done` is not called.
  void Stop(PlanRoundId round);
  // Shortens the round's turn to kHurriedTurn, since another user waits for it.
  void Hurry(PlanRoundId round);

  // When Expire wants to be called next.
  absl::Time NextDeadline() const;
  void Expire();

 private:
  struct Run;
  void StartNext();
  void Launch(const std::shared_ptr<Run>& run);
  void Leave(const std::shared_ptr<Run>& run);
  absl::Time TurnEnds(const Run& run) const;
  void Started(const std::shared_ptr<Run>& run, absl::Status status);
  void Read(const std::shared_ptr<Run>& run);
  void Finish(const std::shared_ptr<Run>& run);
  void End(const std::shared_ptr<Run>& run);

  Loop* loop_;
  TaskThread* codec_;
  const WorkerOptions worker_;
  const Done done_;
  std::map<PlanRoundId, std::shared_ptr<Run>> runs_;
  FairQueue<Principal, std::shared_ptr<Run>> queue_;  // not launched yet
  std::map<Principal, int> running_;                  // workers of each user
  int workers_ = 0;
  bool ending_ = false;
};

}  // namespace sluice::daemon
