// PlanNode: memory for every rank, then swapping for all of them.
#include <fmt/format.h>

#include <algorithm>
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

// Tells `book` how far the plan of all ranks is, segment by segment.
MemoryOptions Watched(MemoryOptions options, const NodeProgress& at,
                      const UnitBook& book) {
  if (!book.watch) return options;
  options.progress = [&at, &book](const MemoryProgress& memory) {
    NodeProgress now = at;
    now.arm = memory.arm;
    now.peak = memory.peak;
    now.lower_bound = memory.lower_bound;
    book.watch(now);
  };
  return options;
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
  for (size_t i = 0; i < profile.classes.size(); ++i) {
    const plan::SkeletalClass& c = profile.classes[i];
    const double swap = c.must_swap ? 1 : choice.alpha;
    rank->classes.push_back({.name = c.name,
                             .swap = swap,
                             .recompute = 1 - swap,
                             .why = choice.why[i]});
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
    const NodeResources& resources, const MemoryOptions& options,
    UnitBook* book) {
  SLUICE_RETURN_IF_ERROR(CheckRanks(profiles));
  UnitBook own;  // equal ranks are solved once in any case
  if (book == nullptr) book = &own;
  const absl::Time start = absl::Now();
  plan::NodePlan plan;
  plan.profile_hash = plan::HashProfiles(profiles);
  SLUICE_ASSIGN_OR_RETURN(const SwapPlan swap, PlanSwap(profiles, resources));
  plan.infeasible = swap.infeasible;
  if (!plan.infeasible.empty()) plan.limited_by = "host_memory";
  plan.limits = swap.limits;
  NodeProgress progress;
  for (const plan::RankProfile& profile : profiles) {
    progress.all += static_cast<int64_t>(profile.segments.size());
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    MemoryOptions left = options;
    left.time_limit = std::max(options.time_limit - (absl::Now() - start),
                               absl::ZeroDuration()) /
                      static_cast<int64_t>(profiles.size() - r);
    progress.segment = fmt::format("of rank {}", profiles[r].rank.value());
    auto layout = PlanSegments(profiles[r].segments,
                               Watched(std::move(left), progress, *book), book);
    progress.done += static_cast<int64_t>(profiles[r].segments.size());
    if (!layout.ok()) {
      return Annotate(layout.status(),
                      fmt::format("rank {}", profiles[r].rank.value()));
    }
    plan::RankPlan rank{.rank = profiles[r].rank,
                        .segments = layout->segments,
                        .transient_peak = layout->peak};
    FillSwap(profiles[r], swap.ranks[r], &rank);
    std::string refusal = TooMuchTransient(profiles[r], rank);
    if (plan.infeasible.empty() && !refusal.empty()) {
      plan.infeasible = std::move(refusal);
      plan.limited_by = "gpu_memory";
    }
    plan.ranks.push_back(std::move(rank));
  }
  plan.units_solved = book->solved();
  plan.units_known = book->known();
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  SLUICE_RETURN_IF_ERROR(ValidateNodePlan(profiles, resources, plan));
  return plan;
}

}  // namespace sluice::planner
