// What profiles may ask for (rank_fractions.h).
#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/swap/given_fractions.h"
#include "planner/swap/rank_fractions.h"
#include "proto/base/status.h"

namespace sluice::planner {

using plan::HostLimit;
using plan::LinkCapacity;
using plan::NodeResources;
using plan::RankProfile;
using plan::SkeletalClass;

namespace {

template <typename... Args>
absl::Status WrongClass(const RankProfile& p, const SkeletalClass& c,
                        fmt::format_string<Args...> what, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(
      "rank {}, class '{}': {}", p.rank.value(), plan::FullName(c.kind, c.name),
      fmt::format(what, std::forward<Args>(args)...)));
}

absl::Status CheckClass(const RankProfile& p, const SkeletalClass& c) {
  const double keep = c.given.keep.value_or(0), swap = c.given.swap.value_or(0);
  if (c.must_swap && (keep > 0 || c.given.swap.value_or(1) < 1)) {
    return WrongClass(p, c,
                      "must be swapped whole, nothing else may be asked for");
  }
  if (keep > 0 && !c.can_keep) {
    return WrongClass(p, c, "asks to keep {}, which the runtime cannot", keep);
  }
  if (keep + swap > 1 + 1e-9) {
    return WrongClass(p, c, "asks for keep {} and swap {}: more than 1", keep,
                      swap);
  }
  if (p.settled && !GivenOf(p, c).all()) {
    return WrongClass(p, c, "a settled profile leaves nothing to choose");
  }
  return absl::OkStatus();
}

// Every kind once, and every class of one of them.
absl::Status CheckKinds(const RankProfile& p) {
  std::set<std::string> names;
  for (const plan::LayerKind& kind : p.kinds) {
    if (!names.insert(kind.name).second) {
      return absl::InvalidArgumentError(fmt::format(
          "rank {} has two kinds of layers '{}'", p.rank.value(), kind.name));
    }
  }
  for (const SkeletalClass& c : p.classes) {
    if (!names.contains(c.kind)) {
      return WrongClass(p, c, "its rank has no layers of the kind '{}'",
                        c.kind);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPositions(const std::vector<size_t>& positions,
                            const std::string& name, size_t count) {
  for (const size_t at : positions) {
    if (at >= count) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' names profile {} of {}", name, at, count));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProfiles(const std::vector<RankProfile>& profiles,
                           const NodeResources& resources) {
  std::set<std::pair<int64_t, uint64_t>> ranks;
  for (const RankProfile& p : profiles) {
    if (!ranks.emplace(p.job, p.rank.value()).second) {
      return absl::InvalidArgumentError(
          fmt::format("rank {} has two profiles", p.rank.value()));
    }
    SLUICE_RETURN_IF_ERROR(CheckKinds(p));
    for (const SkeletalClass& c : p.classes) {
      SLUICE_RETURN_IF_ERROR(CheckClass(p, c));
    }
  }
  for (const LinkCapacity& link : resources.links) {
    SLUICE_RETURN_IF_ERROR(
        CheckPositions(link.profiles, link.name, profiles.size()));
  }
  for (const HostLimit& host : resources.hosts) {
    SLUICE_RETURN_IF_ERROR(
        CheckPositions(host.profiles, host.name, profiles.size()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::planner
