// Runs the plan worker: a separate process, so that a solver that crashes, uses
// too much memory or does not end harms nothing else.
//
// The request goes in as a sealed memfd, and the answer comes out of a pipe
// that the loop watches. Encoding, decoding and the naive check of the plan run
// on the codec thread. The worker's own deadline is a little before that of
// policy, which calls Stop.
//
// At most kMostWorkers run at a time, and kMostOfAUser for one user. FairQueue
// orders the waiting questions by the seconds that each user's workers have
// run. While a question waits, SIGUSR1 tells a worker at the end of its turn
// (kTurn) to write its first plan, which is valid, but maybe not proved
// optimal.
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
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/effects.h"
#include "daemon/core/node/types.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/plan/plan.h"
#include "proto/plan/progress.h"

namespace sluice::daemon {

struct WorkerOptions {
  std::string path;             // of sluice-worker
  Bytes memory;                 // address space of a worker; 0: unlimited
  std::optional<uint32_t> uid;  // of a worker; only a root daemon may set it
  std::optional<uint32_t> gid;
};

class PlanSolver {
 public:
  static constexpr int kMostWorkers = 4;
  static constexpr int kMostOfAUser = 2;
  static constexpr absl::Duration kTurn = absl::Seconds(2);
  // The turn of a round that delays another user (JointPlanning::kShare).
  static constexpr absl::Duration kHurriedTurn = absl::Milliseconds(400);

  using Done = std::function<void(PlanRoundId, absl::StatusOr<plan::NodePlan>,
                                  std::vector<KeyedUnit>)>;

  // `codec` must end before the solver, because its tasks use the solver. The
  // codec thread starts the workers, and the kernel ends them with that thread
  // (PR_SET_PDEATHSIG). `done` runs on the loop's thread.
  PlanSolver(Loop* loop, TaskThread* codec, WorkerOptions worker, Done done);
  // Kills the workers. A worker that is still being started ends with the task
  // that starts it.
  ~PlanSolver();

  void Solve(SolvePlan question);
  std::vector<std::pair<PlanRoundId, plan::PlanProgress>> Progress() const;
  // Kills the round's worker; `done` is not called.
  void Stop(PlanRoundId round);
  void Hurry(PlanRoundId round);

  absl::Time NextDeadline() const;
  void Expire();

 private:
  struct Run;
  void StartNext();
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

// Plans as memfds. All ranks of a job get the same memfd, at different times,
// so it is kept for kKept.
class PlanFiles {
 public:
  static constexpr absl::Duration kKept = absl::Seconds(1);

  explicit PlanFiles(const Core* core) : core_(core) {}

  // NotFound: policy no longer keeps the plan.
  absl::StatusOr<SharedFd> Of(PlanId plan, absl::Time now);
  absl::Time deadline() const;
  void Expire(absl::Time now);

 private:
  struct File {
    SharedFd fd;
    absl::Time drop_at;
  };
  const Core* core_;
  std::map<PlanId, File> files_;
};

}  // namespace sluice::daemon
