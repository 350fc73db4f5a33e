// Plan rounds: collect the profiles of a job's local ranks, have plans solved
// on another thread, and keep the plans.
//
// States of a job's question: collecting (some ranks have submitted) -> asking
// (all have) -> part of a round that is solved (the worker runs, a deadline
// applies) -> done. A rank that submits during a round opens the next one. A
// round answers one job alone, or all asking and running jobs together
// (`together`; at most one such round at a time). Plans are found by the hash
// of all profiles and resources for which they were made. The last kPlansKept
// plans are kept, and those that jobs use or were promised.
// Thread safety: one thread (core.h).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "proto/base/find.h"
#include "proto/base/table.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/progress.h"

namespace sluice::daemon {

// A decoded profile and its hash, which is computed on another thread because a
// profile can be large.
struct ProfileWithHash {
  std::shared_ptr<const plan::RankProfile> profile;
  std::string hash;
  std::vector<std::string> units;  // keys of its segments
  bool operator==(const ProfileWithHash&) const = default;
};

// A job that asks for a plan, with a profile of each local rank.
struct Asking {
  JobKey job;
  std::map<Rank, ProfileWithHash> profiles;
  bool operator==(const Asking&) const = default;
};

class PlanRounds {
 public:
  static constexpr size_t kPlansKept = 256;

  // Returns how many of `local_ranks` have not submitted yet.
  int Submit(const JobKey& job, Rank rank, ProfileWithHash profile,
             int local_ranks);
  // Returns the collected profiles. REQUIRES: Submit has returned 0.
  Asking Take(const JobKey& job);
  struct Collecting {
    std::map<Rank, ProfileWithHash> ranks;
    int wanted = 0;
    bool operator==(const Collecting&) const = default;
  };
  const std::map<JobKey, Collecting>& collecting() const { return collecting_; }

  // A question for the worker, while it is solved.
  struct Round {
    std::vector<Asking> asking;  // jobs that asked
    // All jobs of the question, in the order of their numbers in it.
    std::vector<JobKey> jobs;
    bool together = false;
    std::string cache_key;
    absl::Time started;
    absl::Time deadline;
    std::optional<plan::PlanProgress> progress;
    bool operator==(const Round&) const = default;
  };
  PlanRoundId Start(Round round);
  // Ends a round and returns it; nullopt if it has ended already.
  std::optional<Round> Finish(PlanRoundId round);
  const std::map<PlanRoundId, Round>& solving() const { return solving_; }
  // Moves the round's deadline to `at` if that is earlier.
  void EndBy(PlanRoundId round, absl::Time at) {
    absl::Time& deadline = solving_.at(round).deadline;
    deadline = std::min(deadline, at);
  }
  bool solving_together() const;
  void Progressed(PlanRoundId round, const plan::PlanProgress& progress);
  std::vector<PlanRoundId> Overdue(absl::Time now) const;
  absl::Time NextDeadline() const;

  using Plan = std::shared_ptr<const plan::NodePlan>;
  // Returns an earlier plan for the same question: of jobs together, which get
  // parts of it, or of a job; null if there is none.
  Plan Cached(const std::string& key, bool together) const;
  // Keeps the plan under a new number.
  Plan Keep(const JobKey& job, const std::string& cache_key,
            plan::NodePlan plan);
  Plan KeepTogether(const std::string& cache_key, plan::NodePlan plan);
  // Sets a kept plan as the job's current one, and drops the job's promised
  // one.
  void Use(const JobKey& job, PlanId plan);
  // Sets a kept plan that the job will use.
  void Promise(const JobKey& job, PlanId plan) { promised_.Put(job) = plan; }
  PlanId current(const JobKey& job) const { return FindOr(current_, job); }

  // Removes a rank that has left. A round in which only other users ask
  // continues; otherwise a user with jobs that come and go could delay it
  // without end.
  struct Abandoned {
    std::vector<Rank> ranks;           // submitted, and must wait no longer
    std::vector<PlanRoundId> solving;  // rounds that are given up
    std::vector<Asking> again;         // jobs in these that must ask again
  };
  Abandoned RankLeft(const JobKey& job, Rank rank);
  void JobEnded(const JobKey& job) {
    current_.erase(job);
    promised_.erase(job);
  }

  struct Kept {
    JobKey job;  // the job for which the plan was made first
    std::string cache_key;
    Plan plan;
    bool operator==(const Kept&) const = default;
  };
  const std::deque<Kept>& kept() const { return kept_; }
  // Returns null if the plan is not kept.
  const Kept* FindKept(PlanId plan) const;
  // Returns the plans that jobs use or were promised, each with its job.
  std::vector<std::pair<JobKey, Plan>> PlansOfJobs() const;

  struct Saved {
    std::map<JobKey, Collecting> collecting;
    std::map<PlanRoundId, Round> solving;
    std::map<JobKey, PlanId> current, promised;
    std::deque<Kept> kept, together;
    uint64_t next_round = 1, next_plan = 1;
    bool operator==(const Saved&) const = default;
  };
  Saved Save() const;
  // See state.h.
  Table<JobKey, PlanId>& in_use() { return current_; }
  Table<JobKey, PlanId>& promised() { return promised_; }
  uint64_t next_round() const { return next_round_; }
  uint64_t next_plan() const { return next_plan_; }
  void Load(Saved saved);

  void CheckInvariants() const;

 private:
  bool InUse(PlanId plan) const;

  std::map<JobKey, Collecting> collecting_;
  std::map<PlanRoundId, Round> solving_;
  Table<JobKey, PlanId> current_, promised_;
  std::deque<Kept> kept_;  // oldest first
  std::deque<Kept> together_;
  uint64_t next_round_ = 1;
  uint64_t next_plan_ = 1;
};

}  // namespace sluice::daemon
