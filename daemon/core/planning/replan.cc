#include "daemon/core/planning/replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "daemon/core/node/links.h"
#include "proto/base/find.h"
#include "proto/plan/validate.h"

namespace sluice::daemon {
namespace {

// The outcome of a joint question for one position.
struct Outcome {
  const plan::RankPlan* now = nullptr;   // a member's current plan
  const plan::RankPlan* then = nullptr;  // the plan in the answer
};

std::vector<Outcome> OutcomesOf(const std::map<JobKey, Member>& members,
                                const std::vector<Position>& positions,
                                const std::vector<JobKey>& jobs,
                                const plan::NodePlan& answer) {
  std::vector<Outcome> outcomes;
  for (const Position& position : positions) {
    const auto number = std::ranges::find(jobs, position.job) - jobs.begin();
    const Member* member = FindOrNull(members, position.job);
    outcomes.push_back(
        {member ? FindOrNull(member->ranks, position.rank) : nullptr,
         plan::PartOf(answer, number, position.rank)});
  }
  return outcomes;
}

// Returns the job that frees the most memory under the violated `limit`, or
// null if the limit holds or no job can shrink.
const JobKey* WhoMustShrink(const plan::HostLimit& limit,
                            const std::vector<Position>& positions,
                            const std::vector<Outcome>& outcomes,
                            const std::set<JobKey>& changed) {
  Bytes sum, most;
  const JobKey* who = nullptr;
  for (size_t i : limit.profiles) {
    const Outcome& outcome = outcomes[i];
    if (outcome.then == nullptr) continue;
    const bool stays =
        outcome.now != nullptr && !changed.contains(positions[i].job);
    sum += (stays ? outcome.now : outcome.then)->host_bytes;
    if (!stays) continue;
    const Bytes back = outcome.now->host_bytes - outcome.then->host_bytes;
    if (back > most) {
      most = back;
      who = &positions[i].job;
    }
  }
  return sum > limit.bytes ? who : nullptr;
}

// Returns whether `what` names the GPU limit of a rank of `part`. If so,
// removes the job from that name, which a question of several jobs adds
// (planner/swap/explain.cc).
bool NameOwnGpu(const plan::NodePlan& part, int64_t number, bool several,
                std::string& what) {
  for (const plan::RankPlan& rank : part.ranks) {
    const std::string name = fmt::format("GPU of rank {}", rank.rank.value());
    if (what != (several ? fmt::format("{} of job {}", name, number) : name)) {
      continue;
    }
    what = name;
    return true;
  }
  return false;
}

}  // namespace

bool IsSettled(const Asking& asking) {
  return std::ranges::all_of(asking.profiles, [](const auto& each) {
    return each.second.profile->settled;
  });
}

std::set<JobKey> JobsOf(const std::vector<Position>& positions) {
  std::set<JobKey> jobs;
  for (const Position& position : positions) jobs.insert(position.job);
  return jobs;
}

bool IsSettled(const std::vector<Position>& positions) {
  return std::ranges::all_of(
      positions, [](const Position& each) { return each.profile->settled; });
}

bool HasFreeFractions(const Asking& asking) {
  for (const auto& [rank, read] : asking.profiles) {
    if (read.profile->settled || read.profile->alpha >= 0) continue;
    for (const plan::SkeletalClass& each : read.profile->classes) {
      if (!each.must_swap && each.bytes_per_layer > Bytes(0) &&
          !each.given.all()) {
        return true;
      }
    }
  }
  return false;
}

ProfileWithHash WithoutTraces(const ProfileWithHash& profile,
                              const plan::RankPlan& plan) {
  auto bare = std::make_shared<plan::RankProfile>(*profile.profile);
  bare->segments.clear();
  // A capacity of 0 would also mean "not stated". Nothing is kept then, which
  // is the same as no memory left.
  bare->transient_capacity =
      std::max(bare->transient_capacity - plan.transient_peak, Bytes(0));
  return {std::move(bare), profile.hash + "-", {}};
}

std::map<Rank, plan::RankPlan> PlansOf(const plan::NodePlan& plan) {
  std::map<Rank, plan::RankPlan> ranks;
  for (plan::RankPlan rank : plan.ranks) {
    rank.segments.clear();
    for (plan::ClassPlan& each : rank.classes) each.why.clear();
    ranks[rank.rank] = std::move(rank);
  }
  return ranks;
}

PlannedLinks PlannedLinksOf(const std::vector<LinkSpeed>& links) {
  PlannedLinks planned;
  for (const LinkSpeed& link : links) {
    if (!IsLimited(link)) continue;
    planned[link.name] = {link.h2d_bytes_per_second, link.d2h_bytes_per_second,
                          link.both_bytes_per_second};
  }
  return planned;
}

Member MemberOf(const Asking& asking, const plan::NodePlan& plan,
                const std::vector<LinkSpeed>& links) {
  Member member;
  member.links = PlannedLinksOf(links);
  member.ranks = PlansOf(plan);
  for (const auto& [rank, read] : asking.profiles) {
    member.profiles[rank] = WithoutTraces(read, member.ranks[rank]);
  }
  return member;
}

const plan::ClassPlan* FindClass(const plan::RankPlan& plan,
                                 const std::string& kind,
                                 const std::string& name) {
  for (const plan::ClassPlan& each : plan.classes) {
    if (each.kind == kind && each.name == name) return &each;
  }
  return nullptr;
}

double Distance(const plan::RankPlan& a, const plan::RankPlan& b) {
  double most = 0;
  for (const plan::ClassPlan& each : a.classes) {
    const plan::ClassPlan* other = FindClass(b, each.kind, each.name);
    if (other == nullptr) return 1;
    most =
        std::max({most, std::abs(each.fractions.keep - other->fractions.keep),
                  std::abs(each.fractions.swap - other->fractions.swap)});
  }
  return most;
}

double StepSeconds(const plan::RankProfile& profile,
                   const plan::RankPlan& plan) {
  double seconds = 0;
  for (const plan::LayerKind& kind : profile.kinds) {
    seconds += static_cast<double>(kind.layers) *
               (kind.forward_layer_seconds + kind.backward_layer_seconds);
  }
  for (const plan::SkeletalClass& each : profile.classes) {
    const plan::ClassPlan* chosen = FindClass(plan, each.kind, each.name);
    if (chosen == nullptr) continue;
    seconds +=
        static_cast<double>(plan::KindOf(profile, each).moving_layers()) *
        each.recompute_seconds * chosen->fractions.recompute;
  }
  return seconds;
}

std::set<JobKey> WhoChanges(const std::map<JobKey, Member>& members,
                            const std::vector<Position>& positions,
                            const std::vector<plan::HostLimit>& hosts,
                            const std::vector<JobKey>& jobs,
                            const plan::NodePlan& answer) {
  const std::vector<Outcome> outcomes =
      OutcomesOf(members, positions, jobs, answer);
  double step_now = 0, step_then = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (outcome.then == nullptr) continue;
    const plan::RankPlan& now = outcome.now ? *outcome.now : *outcome.then;
    step_now = std::max(step_now, StepSeconds(*positions[i].profile, now));
    step_then =
        std::max(step_then, StepSeconds(*positions[i].profile, *outcome.then));
  }
  const bool shorter = step_then < (1 - kStepGain) * step_now;
  std::set<JobKey> changed;
  for (size_t i = 0; i < positions.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (outcome.now == nullptr || outcome.then == nullptr) continue;
    const double moved = Distance(*outcome.now, *outcome.then);
    if (moved > kFractionStep || (shorter && moved > 0)) {
      changed.insert(positions[i].job);
    }
  }
  for (const plan::HostLimit& limit : hosts) {
    while (const JobKey* who =
               WhoMustShrink(limit, positions, outcomes, changed)) {
      changed.insert(*who);
    }
  }
  return changed;
}

plan::NodePlan PartOf(const plan::NodePlan& answer, int64_t number,
                      const std::vector<Position>& positions, const JobKey& job,
                      const plan::NodeResources& resources) {
  plan::NodePlan part;
  part.profile_hash = answer.profile_hash;
  part.seconds = answer.seconds;
  part.infeasible = answer.infeasible;
  part.limited_by = answer.limited_by;
  part.units_solved = answer.units_solved;
  part.units_known = answer.units_known;
  for (const plan::RankPlan& rank : answer.ranks) {
    if (rank.job != number) continue;
    part.ranks.push_back(rank);
    part.ranks.back().job = 0;
  }
  const auto binds = [&](const std::vector<size_t>& profiles) {
    return std::ranges::any_of(profiles, [&](size_t i) {
      return i < positions.size() && positions[i].job == job;
    });
  };
  const auto shown = [&](const std::string& what) {
    for (const plan::LinkCapacity& link : resources.links) {
      if (what.starts_with("link " + link.name + " ")) {
        return binds(link.profiles);
      }
    }
    for (const plan::HostLimit& host : resources.hosts) {
      if (what == host.name) return binds(host.profiles);
    }
    return false;
  };
  const std::set<JobKey> jobs = JobsOf(positions);
  for (plan::PlanLimit limit : answer.limits) {
    const bool own_gpu = NameOwnGpu(part, number, jobs.size() > 1, limit.what);
    if (own_gpu || shown(limit.what)) part.limits.push_back(std::move(limit));
  }
  return part;
}

}  // namespace sluice::daemon
