// Runs the plan worker: a separate process (posix_spawn, never a bare fork of a
// process with threads), so that a solver that crashes, uses too much memory or
// does not end harms nothing else.
//
// How it works. The request goes in as a sealed memfd, and the answer comes out
// of a pipe that the loop watches. Encoding, decoding and the naive check of
// the plan run on the codec thread. The worker has its own deadline; that of
// policy, which calls Stop, is a little later.
//
// Fairness. At most kMostWorkers run at a time, and kMostOfAUser for one user.
// FairQueue orders the waiting ones by the seconds that each user's workers
// have run. While any wait, a worker at the end of its turn (kTurn) is told by
// SIGUSR1 to write its first plan, which is valid, but maybe not proved
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
  // The turn of a worker with a round that delays another user
  // (JointPlanning::kShare).
  static constexpr absl::Duration kHurriedTurn = absl::Milliseconds(400);

  // Receives the plan and the units that were solved for it.
  using Done = std::function<void(PlanRoundId, absl::StatusOr<plan::NodePlan>,
                                  std::vector<KeyedUnit>)>;

  // `loop` must outlive the solver, and `codec` must end before it (its tasks
  // use the solver). `done` runs on the loop's thread. The codec thread starts
  // the workers, and the kernel ends them with that thread, however the daemon
  // ends (PR_SET_PDEATHSIG).
  PlanSolver(Loop* loop, TaskThread* codec, WorkerOptions worker, Done done);
  // Ends running workers. If the codec thread has not yet posted a worker's
  // start to the loop, that worker ends with the loop.
  ~PlanSolver();

  void Solve(SolvePlan question);
  // Returns the progress of running workers, as far as they report it.
  std::vector<std::pair<PlanRoundId, plan::PlanProgress>> Progress() const;
  // Kills the worker of a round, if there is one; `done` is not called.
  void Stop(PlanRoundId round);
  // Shortens the round's turn to kHurriedTurn, since another user waits for it.
  void Hurry(PlanRoundId round);

  // Returns when to call Expire.
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

// Plans as memfds. All ranks of a job get the same memfd, at different times,
// so it is kept for a moment after it was made.
class PlanFiles {
 public:
  static constexpr absl::Duration kKept = absl::Seconds(1);

  // `core` must outlive this object
  explicit PlanFiles(const Core* core) : core_(core) {}

  // Returns the plan's memfd. NotFound: policy no longer keeps that plan.
  absl::StatusOr<std::shared_ptr<const UniqueFd>> Of(PlanId plan,
                                                     absl::Time now);
  // Returns when to call Expire; InfiniteFuture if not needed.
  absl::Time deadline() const;
  void Expire(absl::Time now);

 private:
  struct File {
    std::shared_ptr<const UniqueFd> fd;
    absl::Time drop_at;
  };
  const Core* core_;
  std::map<PlanId, File> files_;
};

}  // namespace sluice::daemon
