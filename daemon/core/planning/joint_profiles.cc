// How much of profiles is kept while their jobs ask and run.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/core/planning/joint_planning.h"

namespace sluice::daemon {
namespace {

// Without its traces, which go when its memory is planned. At least what it
// takes of the saved state (daemon/state/core_fields.h).
Bytes KeptOf(const plan::RankProfile& profile) {
  constexpr size_t kNumbers = 96;  // of a part, and what tells them apart
  size_t bytes = 2 * kNumbers + profile.limited_by.size();
  for (const plan::LayerKind& kind : profile.kinds) {
    bytes += kNumbers + kind.name.size();
  }
  for (const plan::SkeletalClass& each : profile.classes) {
    bytes += kNumbers + each.name.size() + each.kind.size() + each.why.size();
  }
  return Bytes(static_cast<int64_t>(bytes));
}

}  // namespace

// A rank counts with the larger of the profile that it asks with and the one
// that it runs by, since an answer replaces the one by the other.
JointPlanning::ProfileSizes JointPlanning::SizesOfProfiles() const {
  ProfileSizes sizes;
  const auto add = [&](const JobKey& job,
                       const std::map<Rank, ProfileWithHash>& profiles) {
    for (const auto& [rank, read] : profiles) {
      Bytes& size = sizes[{job, rank}];
      size = std::max(size, KeptOf(*read.profile));
    }
  };
  for (const auto& [job, member] : members_) add(job, member.profiles);
  for (const auto& [job, open] : rounds_.collecting()) add(job, open.ranks);
  for (const Asking& each : joining_) add(each.job, each.profiles);
  for (const auto& [job, held] : held_) add(job, held.asking.profiles);
  for (const auto& [id, round] : rounds_.solving()) {
    for (const Asking& each : round.asking) add(each.job, each.profiles);
  }
  return sizes;
}

std::map<Principal, Bytes> JointPlanning::KeptProfiles() const {
  std::map<Principal, Bytes> users;
  for (const auto& [whose, size] : SizesOfProfiles()) {
    users[whose.first.principal] += size;
  }
  return users;
}

absl::Status JointPlanning::MayKeep(SessionId session,
                                    const plan::RankProfile& profile) const {
  const AttachedRank& rank = attached_.at(session);
  const Principal& who = rank.job.principal;
  const Bytes size = KeptOf(profile);
  Bytes own, all;
  for (const auto& [whose, kept] : SizesOfProfiles()) {
    if (whose == std::pair(rank.job, rank.rank)) continue;  // is replaced
    all += kept;
    if (whose.first.principal == who) own += kept;
  }
  const ProfileLimit& limit = config_.profile_limit;
  if (own + size > limit.each) {
    return absl::ResourceExhaustedError(fmt::format(
        "a profile of {} bytes without its traces, and {} has {} bytes of "
        "those, and the limit is {}: submit one of fewer classes or with "
        "shorter names, or end some jobs",
        size.count(), Name(who), own.count(), limit.each.count()));
  }
  if (all + size > limit.all) {
    return absl::ResourceExhaustedError(fmt::format(
        "a profile of {} bytes without its traces, and this node has {} bytes "
        "of those, and the limit of all users together is {}: wait until some "
        "jobs end",
        size.count(), all.count(), limit.all.count()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::daemon
