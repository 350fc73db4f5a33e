// Plan rounds: collect the profiles of a job's local ranks, have them solved
// off the loop, keep what came out.
//
// A round of a job: collecting (some ranks have submitted) -> solving (the
// worker runs, a deadline stands) -> done. A rank that submits while a round
// is being solved opens the next one. Plans are immutable; they are found
// again by the hash of all profiles and the resources they were made for.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/effects.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::daemon {

struct JobKey {
  Principal principal;
  std::string name;
  auto operator<=>(const JobKey&) const = default;
};

class PlanRounds {
 public:
  using Profile = std::shared_ptr<const plan::RankProfile>;
  static constexpr size_t kPlansKept = 256;

  // Ranks of `local_ranks` still missing after this submission.
  int Submit(const JobKey& job, Rank rank, Profile profile, int local_ranks);

  // All profiles of the round that is being collected, by rank; the round
  // moves to solving. Only when Submit has returned 0.
  struct Started {
    PlanRoundId round;
    std::vector<Profile> profiles;
  };
  Started Start(const JobKey& job, std::string cache_key, absl::Time deadline);

  // Rounds that are being collected (round 0) or solved.
  struct Open {
    JobKey job;
    int ranks = 0;
    int wanted = 0;
    PlanRoundId round;
    absl::Time deadline = absl::InfiniteFuture();
  };
  std::vector<Open> OpenRounds() const;

  // A plan made before for the same question.
  std::shared_ptr<const plan::NodePlan> Cached(const std::string& key) const;

  struct Finished {
    JobKey job;
    std::vector<Rank> ranks;
    std::string cache_key;
  };
  // nullopt: the round was given up before.
  std::optional<Finished> Finish(PlanRoundId round);
  // Rounds whose deadline has passed.
  std::vector<PlanRoundId> Overdue(absl::Time now) const;
  absl::Time NextDeadline() const;

  // Gives a solved plan its id and keeps it.
  std::shared_ptr<const plan::NodePlan> Keep(const JobKey& job,
                                             const std::string& cache_key,
                                             plan::NodePlan plan);
  void Use(const JobKey& job, PlanId plan) { current_[job] = plan; }
  PlanId current(const JobKey& job) const;
  std::shared_ptr<const plan::NodePlan> Find(PlanId plan) const;
  // Who the plan was made for first.
  const JobKey* Owner(PlanId plan) const;

  // A rank left. Whoever had submitted in the job's open rounds can wait no
  // longer: they are returned, and a solving round is given up.
  struct Abandoned {
    std::vector<Rank> ranks;
    std::vector<PlanRoundId> solving;
  };
  Abandoned RankLeft(const JobKey& job, Rank rank);
  void JobEnded(const JobKey& job);

  struct Kept {
    JobKey job;
    std::string cache_key;
    std::shared_ptr<const plan::NodePlan> plan;
  };
  const std::deque<Kept>& kept() const { return kept_; }

  void CheckInvariants() const;

 private:
  struct Solving {
    JobKey job;
    std::vector<Rank> ranks;
    std::string cache_key;
    absl::Time deadline;
  };
  struct Collecting {
    std::map<Rank, Profile> ranks;
    int wanted = 0;
  };
  std::map<JobKey, Collecting> collecting_;
  std::map<PlanRoundId, Solving> solving_;
  std::map<JobKey, PlanId> current_;
  std::deque<Kept> kept_;  // oldest first
  uint64_t next_round_ = 1;
  uint64_t next_plan_ = 1;
};

}  // namespace sluice::daemon
