#include "daemon/core/planning/replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "daemon/bandwidth/topology.h"
#include "proto/base/find.h"
#include "proto/plan/validate.h"

namespace sluice::daemon {
namespace {

// The outcome of a joint question for one position.
struct Outcome {
  const Position& of;
  const plan::RankPlan* now = nullptr;   // a member's current plan
  const plan::RankPlan* then = nullptr;  // the plan in the answer
};

std::vector<Outcome> OutcomesOf(const std::map<JobKey, Member>& members,
                                const PlanRounds::Round& round,
                                const plan::NodePlan& answer) {
  std::vector<Outcome> outcomes;
  for (const Position& each : round.positions) {
    const auto number =
        std::ranges::find(round.jobs, each.job) - round.jobs.begin();
    const Member* member = FindOrNull(members, each.job);
    outcomes.push_back({each,
                        member ? FindOrNull(member->ranks, each.rank) : nullptr,
                        plan::PartOf(answer, number, each.rank)});
  }
  return outcomes;
}

// Returns the job that frees the most memory under the violated `limit`, or
// null if the limit holds or no job can shrink.
const JobKey* WhoMustShrink(const plan::HostLimit& limit,
                            const std::vector<Outcome>& outcomes,
                            const std::set<JobKey>& changed) {
  Bytes sum, most;
  const JobKey* who = nullptr;
  for (size_t i : limit.profiles) {
    const auto& [of, now, then] = outcomes[i];
    if (then == nullptr) continue;
    const bool stays = now != nullptr && !changed.contains(of.job);
    sum += (stays ? now : then)->host_bytes;
    if (!stays || now->host_bytes - then->host_bytes <= most) continue;
    most = now->host_bytes - then->host_bytes;
    who = &of.job;
  }
  return sum > limit.bytes ? who : nullptr;
}

// Returns whether `what` names the GPU limit of a rank of `part`. If so,
// removes the job's number, which a question of several jobs adds
// (planner/swap/explain.cc).
bool NameOwnGpu(const plan::NodePlan& part, size_t number, bool several,
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

// Returns the largest difference of a class's fractions between two plans.
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

// Returns the time of the rank's layers and recomputation in a step.
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

// Returns the profile for later questions. `plan` has planned the memory of the
// traces, so they are removed, and their peak is taken off the capacity.
ProfileWithHash WithoutTraces(const ProfileWithHash& profile,
                              const plan::RankPlan& plan) {
  auto bare = std::make_shared<plan::RankProfile>(*profile.profile);
  bare->segments.clear();
  // 0 also means an unknown capacity: in both cases a plan keeps nothing.
  bare->transient_capacity =
      std::max(bare->transient_capacity - plan.transient_peak, Bytes(0));
  return {std::move(bare), profile.hash + "-", {}};
}

}  // namespace

bool IsSettled(const Asking& asking) {
  return std::ranges::all_of(asking.profiles, [](const auto& each) {
    return each.second.profile->settled;
  });
}

bool HasFreeFractions(const Profiles& profiles) {
  return std::ranges::any_of(profiles, [](const auto& each) {
    const plan::RankProfile& profile = *each.second.profile;
    return !profile.settled && profile.alpha < 0 &&
           std::ranges::any_of(profile.classes, [](const auto& of) {
             return !of.must_swap && of.bytes_per_layer > Bytes(0) &&
                    !of.given.all();
           });
  });
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
  Member member{.ranks = PlansOf(plan), .links = PlannedLinksOf(links)};
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

std::set<JobKey> WhoChanges(const std::map<JobKey, Member>& members,
                            const PlanRounds::Round& round,
                            const plan::NodePlan& answer) {
  const std::vector<Outcome> outcomes = OutcomesOf(members, round, answer);
  double step_now = 0, step_then = 0;
  for (const auto& [of, now, then] : outcomes) {
    if (then == nullptr) continue;
    step_now = std::max(step_now, StepSeconds(*of.profile, now ? *now : *then));
    step_then = std::max(step_then, StepSeconds(*of.profile, *then));
  }
  const bool shorter = step_then < (1 - kStepGain) * step_now;
  std::set<JobKey> changed;
  for (const auto& [of, now, then] : outcomes) {
    if (now == nullptr || then == nullptr) continue;
    const double moved = Distance(*now, *then);
    if (moved > kFractionStep || (shorter && moved > 0)) changed.insert(of.job);
  }
  for (const plan::HostLimit& limit : round.resources.hosts) {
    while (const JobKey* who = WhoMustShrink(limit, outcomes, changed)) {
      changed.insert(*who);
    }
  }
  return changed;
}

plan::NodePlan PartOf(const plan::NodePlan& answer, size_t number,
                      const PlanRounds::Round& round) {
  plan::NodePlan part{.profile_hash = answer.profile_hash,
                      .seconds = answer.seconds,
                      .infeasible = answer.infeasible,
                      .limited_by = answer.limited_by,
                      .units_solved = answer.units_solved,
                      .units_known = answer.units_known};
  for (const plan::RankPlan& rank : answer.ranks) {
    if (rank.job != static_cast<int64_t>(number)) continue;
    part.ranks.push_back(rank);
    part.ranks.back().job = 0;
  }
  const auto binds = [&](const std::vector<size_t>& profiles) {
    return std::ranges::any_of(profiles, [&](size_t i) {
      return round.positions[i].job == round.jobs[number];
    });
  };
  const auto shown = [&](const std::string& what) {
    for (const plan::LinkCapacity& link : round.resources.links) {
      if (what.starts_with("link " + link.name + " ")) {
        return binds(link.profiles);
      }
    }
    const auto host =
        std::ranges::find(round.resources.hosts, what, &plan::HostLimit::name);
    return host != round.resources.hosts.end() && binds(host->profiles);
  };
  for (plan::PlanLimit limit : answer.limits) {
    if (NameOwnGpu(part, number, round.jobs.size() > 1, limit.what) ||
        shown(limit.what)) {
      part.limits.push_back(std::move(limit));
    }
  }
  return part;
}

}  // namespace sluice::daemon
