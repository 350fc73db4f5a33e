// PlanNode: memory for every rank, then swapping for all of them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "planner/planner.h"
#include "planner/swap/alpha.h"
#include "planner/validator.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"

namespace sluice::planner {
namespace {

// What decides a rank's memory plan; ranks of one job are mostly equal, and
// equal ones are solved once.
std::string KeyOf(const std::vector<plan::SegmentKind>& segments) {
  std::string key;
  for (const plan::SegmentKind& kind : segments) {
    fmt::format_to(std::back_inserter(key), "{}:{};", kind.name,
                   kind.trace.alignment.count());
    for (const plan::Buffer& b : kind.trace.buffers) {
      fmt::format_to(std::back_inserter(key), "{},{},{};", b.lower, b.upper,
                     b.size.count());
    }
  }
  return key;
}

using LayoutCache = std::map<std::string, SegmentLayout>;

absl::StatusOr<const SegmentLayout*> LayoutOf(const plan::RankProfile& profile,
                                              const MemoryOptions& options,
                                              LayoutCache* cache) {
  const std::string key = KeyOf(profile.segments);
  auto found = cache->find(key);
  if (found == cache->end()) {
    SLUICE_ASSIGN_OR_RETURN(SegmentLayout layout,
                            PlanSegments(profile.segments, options));
    found = cache->emplace(key, std::move(layout)).first;
  }
  return &found->second;
}

// One line when the transient region does not fit; empty when it does.
std::string TooMuchTransient(const plan::RankProfile& profile,
                             const plan::RankPlan& rank) {
  if (profile.transient_capacity <= Bytes(0) ||
      rank.transient_peak <= profile.transient_capacity) {
    return "";
  }
  std::string worst;
  for (const plan::SegmentPlan& segment : rank.segments) {
    if (segment.base + segment.placement.peak == rank.transient_peak) {
      worst = segment.name;
    }
  }
  return fmt::format(
      "rank {} needs {} ({} bytes) of GPU memory for the transient buffers of "
      "segment '{}', its lease has {} ({} bytes) left for them: take smaller "
      "chunks or a larger lease",
      profile.rank.value(), FormatBytes(rank.transient_peak),
      rank.transient_peak.count(), worst,
      FormatBytes(profile.transient_capacity),
      profile.transient_capacity.count());
}

void FillSwap(const plan::RankProfile& profile, const SwapChoice& choice,
              plan::RankPlan* rank) {
  rank->alpha = choice.alpha;
  rank->alpha_limited_by = choice.limited_by;
  rank->host_bytes = choice.host_bytes;
  for (const plan::SkeletalClass& c : profile.classes) {
    const double swap = c.must_swap ? 1 : choice.alpha;
    rank->classes.push_back(
        {.name = c.name, .swap = swap, .recompute = 1 - swap});
  }
}

// Ranks that share a name or NUMA nodes that nobody knows would be planned
// wrong silently.
absl::Status CheckRanks(const std::vector<plan::RankProfile>& profiles) {
  for (size_t i = 0; i < profiles.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (profiles[i].rank == profiles[j].rank) {
        return absl::InvalidArgumentError(
            fmt::format("rank {} has two profiles", profiles[i].rank.value()));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckRanks(profiles));
  const absl::Time start = absl::Now();
  plan::NodePlan plan;
  plan.profile_hash = plan::HashProfiles(profiles);
  SLUICE_ASSIGN_OR_RETURN(const SwapPlan swap, PlanSwap(profiles, resources));
  plan.infeasible = swap.infeasible;
  if (!plan.infeasible.empty()) plan.limited_by = "host_memory";
  LayoutCache cache;
  for (size_t r = 0; r < profiles.size(); ++r) {
    MemoryOptions left = options;
    left.time_limit = std::max(options.time_limit - (absl::Now() - start),
                               absl::ZeroDuration()) /
                      static_cast<int64_t>(profiles.size() - r);
    auto layout = LayoutOf(profiles[r], left, &cache);
    if (!layout.ok()) {
      return Annotate(layout.status(),
                      fmt::format("rank {}", profiles[r].rank.value()));
    }
    plan::RankPlan rank{.rank = profiles[r].rank,
                        .segments = (*layout)->segments,
                        .transient_peak = (*layout)->peak};
    FillSwap(profiles[r], swap.ranks[r], &rank);
    std::string refusal = TooMuchTransient(profiles[r], rank);
    if (plan.infeasible.empty() && !refusal.empty()) {
      plan.infeasible = std::move(refusal);
      plan.limited_by = "gpu_memory";
    }
    plan.ranks.push_back(std::move(rank));
  }
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  SLUICE_RETURN_IF_ERROR(ValidateNodePlan(profiles, resources, plan));
  return plan;
}

}  // namespace sluice::planner
