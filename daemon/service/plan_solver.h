// Runs the plan worker: a process of its own (posix_spawn, never a bare fork
// of a process with threads), so that a solver that crashes, eats memory or
// does not end takes nothing with it.
//
// How it works. The request goes in as a sealed memfd, the answer comes out
// of a pipe that the loop watches; encoding, decoding and the naive check of
// the plan run on the codec thread. The deadline is the worker's own, and
// policy's a little later (Stop).
//
// Thread safety: loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/effects.h"
#include "daemon/service/loop.h"
#include "daemon/service/task_thread.h"
#include "proto/plan/plan.h"
#include "proto/plan/progress.h"

namespace sluice::daemon {

class PlanSolver {
 public:
  // With the plan: the units that were solved for it.
  using Done = std::function<void(PlanRoundId, absl::StatusOr<plan::NodePlan>,
                                  std::vector<KeyedUnit>)>;

  // `loop` outlives the solver, `codec` ends before it (its tasks use the
  // solver); `done` runs on the loop's thread. Workers are started by the
  // codec thread and end with it, however the daemon ends (PR_SET_PDEATHSIG).
  PlanSolver(Loop* loop, TaskThread* codec, std::string worker_path, Done done);
  // Ends running workers; one whose start the loop was not told of ends with
  // the loop.
  ~PlanSolver();

  void Solve(SolvePlan question);
  // How far the running workers say they are.
  std::vector<std::pair<PlanRoundId, plan::PlanProgress>> Progress() const;
  // Kills the worker of a round, if there is one; `done` is not called.
  void Stop(PlanRoundId round);

 private:
  struct Run;
  void Started(const std::shared_ptr<Run>& run, absl::Status status);
  void Read(const std::shared_ptr<Run>& run);
  void Finish(const std::shared_ptr<Run>& run);
  void End(const std::shared_ptr<Run>& run);

  Loop* loop_;
  TaskThread* codec_;
  const std::string worker_path_;
  const Done done_;
  std::map<PlanRoundId, std::shared_ptr<Run>> runs_;
};

}  // namespace sluice::daemon
