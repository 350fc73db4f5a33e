// Plan rounds: the profiles that a job's local ranks have submitted, the
// questions that the planner's workers are solving, and the plans.
//
// States of a job's question: collecting (some ranks have submitted) -> asking
// (all have) -> part of a round that is solved (the worker runs, a deadline
// applies) -> done. A rank that submits during a round opens the next one. A
// round answers one job alone, or asking and running jobs together (`together`;
// at most one such round at a time). Plans are found by the hashes of all
// profiles and the resources for which they were made. The last kPlansKept
// plans are kept, and those that jobs use or were promised.
// Thread safety: one thread (core.h).
#pragma once

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
#include "proto/plan/request.h"

namespace sluice::daemon {

// A decoded profile and its hash. Another thread makes them, because a profile
// may be large.
struct ProfileWithHash {
  std::shared_ptr<const plan::RankProfile> profile;
  std::string hash;
  std::vector<std::string> units;  // keys of its segments' units
  bool operator==(const ProfileWithHash&) const = default;
};
using Profiles = std::map<Rank, ProfileWithHash>;

// A job that asks for a plan, with a profile of each local rank.
struct Asking {
  JobKey job;
  Profiles profiles;
  bool operator==(const Asking&) const = default;
};

// A rank of a question. A question's positions have the order of its profiles.
struct Position {
  JobKey job;
  Rank rank;
  std::shared_ptr<const plan::RankProfile> profile;
  bool operator==(const Position&) const = default;
};

struct PlanRounds {
  static constexpr size_t kPlansKept = 256;

  struct Collecting {
    Profiles ranks;
    int wanted = 0;
    bool operator==(const Collecting&) const = default;
  };
  // A question for the worker, while it is solved.
  struct Round {
    std::vector<Asking> asking;  // jobs that asked
    // All jobs of the question, in the order of their numbers.
    std::vector<JobKey> jobs;
    std::vector<Position> positions;
    plan::NodeResources resources;
    bool together = false;
    std::string cache_key;
    absl::Time started;
    absl::Time deadline;
    std::optional<plan::PlanProgress> progress;
    bool operator==(const Round&) const = default;
  };
  using Plan = std::shared_ptr<const plan::NodePlan>;
  struct Kept {
    JobKey job;  // the job for which the plan was made first
    std::string cache_key;
    Plan plan;
    bool operator==(const Kept&) const = default;
  };

  bool solving_together() const;
  // Returns the plan of an earlier question with this key, asked for one job or
  // for several together; null if there is none.
  Plan Cached(const std::string& key, bool of_jobs_together) const;
  // Keeps the plan under a new number.
  Plan Keep(const JobKey& job, const std::string& cache_key,
            plan::NodePlan plan);
  Plan KeepTogether(const std::string& cache_key, plan::NodePlan plan);
  // Makes a kept plan the job's current one, and drops the promised one.
  void Use(const JobKey& job, PlanId plan);
  const Kept* FindKept(PlanId plan) const;

  void CheckInvariants() const;
  bool operator==(const PlanRounds&) const = default;

  std::map<JobKey, Collecting> collecting;
  std::map<PlanRoundId, Round> solving;
  // The kept plans that jobs use (`current`) and will use (`promised`).
  Table<JobKey, PlanId> current, promised;
  std::deque<Kept> kept, together;  // oldest first
  uint64_t next_round = 1, next_plan = 1;
};

}  // namespace sluice::daemon
