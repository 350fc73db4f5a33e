// What profiles and plans may take of the saved state (daemon/state).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/planning/joint_planning.h"
#include "daemon/quota/quotas.h"

namespace sluice::daemon {
namespace {

constexpr size_t kNumbers = 96;  // of a part, and what tells them apart
constexpr size_t kOffset = 9;    // a buffer's, as a varint

// A profile without its traces.
size_t SizeOf(const plan::RankProfile& profile) {
  size_t bytes = 2 * kNumbers + profile.limited_by.size();
  for (const plan::LayerKind& kind : profile.kinds) {
    bytes += kNumbers + kind.name.size();
  }
  for (const plan::SkeletalClass& each : profile.classes) {
    bytes += kNumbers + each.name.size() + each.kind.size() + each.why.size();
  }
  return bytes;
}

size_t SizeOf(const plan::NodePlan& plan) {
  size_t bytes = kNumbers + plan.infeasible.size();
  for (const plan::PlanLimit& limit : plan.limits) {
    bytes += kNumbers + limit.what.size();
  }
  for (const plan::RankPlan& rank : plan.ranks) {
    bytes += kNumbers;
    for (const plan::SegmentPlan& segment : rank.segments) {
      bytes += kNumbers + segment.name.size() +
               kOffset * segment.placement.offsets.size();
    }
    for (const plan::ClassPlan& each : rank.classes) {
      bytes += kNumbers + each.name.size() + each.kind.size() + each.why.size();
    }
  }
  return bytes;
}

// The most that is saved of a rank with this profile: the profile, the parts of
// three plans by which the rank runs, ran and settled (Member), and two plans
// that are to come, of which one has segments.
size_t MostSaved(const plan::RankProfile& profile) {
  constexpr size_t kLimits = 8192;  // of two plans, with their names
  constexpr size_t kReason = 512;   // that the planner writes for a class
  size_t bytes =
      6 * SizeOf(profile) + kLimits + 2 * kReason * profile.classes.size();
  for (const plan::SegmentKind& segment : profile.segments) {
    bytes +=
        kNumbers + segment.name.size() + kOffset * segment.trace.buffers.size();
  }
  return bytes;
}

}  // namespace

// A rank counts with the larger of the profile that it asks with and the one
// that it runs by, since an answer replaces the one by the other. Plans in use
// may be those of earlier profiles, or of ranks that have left.
JointPlanning::KeptSizes JointPlanning::SizesOfKept() const {
  KeptSizes sizes;
  const auto add = [&](const JobKey& job,
                       const std::map<Rank, ProfileWithHash>& profiles) {
    for (const auto& [rank, read] : profiles) {
      size_t& size = sizes[{job, rank}];
      size = std::max(size, MostSaved(*read.profile));
    }
  };
  for (const auto& [job, member] : members_) add(job, member.profiles);
  for (const auto& [job, open] : rounds_.collecting()) add(job, open.ranks);
  for (const Asking& each : joining_) add(each.job, each.profiles);
  for (const auto& [job, held] : held_) add(job, held.asking.profiles);
  for (const auto& [id, round] : rounds_.solving()) {
    for (const Asking& each : round.asking) add(each.job, each.profiles);
  }
  for (const auto& [job, plan] : rounds_.PlansOfJobs()) {
    sizes[{job, std::nullopt}] += SizeOf(*plan);
  }
  return sizes;
}

std::map<Principal, Bytes> JointPlanning::KeptProfiles() const {
  std::map<Principal, Bytes> users;
  for (const auto& [whose, size] : SizesOfKept()) {
    users[whose.first.principal] += Bytes(static_cast<int64_t>(size));
  }
  return users;
}

absl::Status JointPlanning::MayKeep(SessionId session,
                                    const plan::RankProfile& profile) const {
  const AttachedRank& rank = attached_.at(session);
  const Principal& who = rank.job.principal;
  const auto size = static_cast<int64_t>(MostSaved(profile));
  int64_t own = 0, all = 0;
  for (const auto& [whose, kept] : SizesOfKept()) {
    if (whose == std::pair(rank.job, std::optional(rank.rank))) continue;
    all += static_cast<int64_t>(kept);
    if (whose.first.principal == who) own += static_cast<int64_t>(kept);
  }
  const Share share = {config_.profile_limit.each.count(),
                       config_.profile_limit.all.count()};
  if (own + size > share.each) {
    return absl::ResourceExhaustedError(fmt::format(
        "a profile that with its plans may take {} bytes of the saved state, "
        "and {} has {} of those, and the limit is {}: submit one of fewer "
        "classes or with shorter names, or end some jobs",
        size, Name(who), own, share.each));
  }
  if (all + size > share.all_for(own + size)) {
    return NoRoom(share, "bytes of profiles and plans in the saved state", all,
                  own + size);
  }
  return absl::OkStatus();
}

}  // namespace sluice::daemon
