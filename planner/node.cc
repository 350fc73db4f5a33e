#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "planner/planner.h"
#include "planner/swap/rank_fractions.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"

namespace sluice::planner {
namespace {

// Returns the trace of MEMO section 4.2's level 2: one pseudo request per
// segment kind. Segments run one after another, so no two are alive together.
plan::Trace SequenceOf(const std::vector<plan::SegmentPlan>& segments,
                       Bytes alignment) {
  plan::Trace trace;
  trace.alignment = alignment;
  for (const plan::SegmentPlan& segment : segments) {
    trace.buffers.push_back({.id = trace.end,
                             .lower = trace.end,
                             .upper = trace.end + 1,
                             .size = segment.placement.peak});
    ++trace.end;
  }
  return trace;
}

// Returns `options` with a progress callback that reports to `book`.
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

// Returns why the rank's transient region exceeds its capacity, or "".
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

// Plans the memory of all ranks. The time limit covers all of them.
absl::StatusOr<std::vector<plan::RankPlan>> PlanMemories(
    const std::vector<plan::RankProfile>& profiles,
    const MemoryOptions& options, absl::Time start, UnitBook* book) {
  std::vector<plan::RankPlan> ranks;
  NodeProgress progress;
  for (const plan::RankProfile& profile : profiles) {
    progress.all += static_cast<int64_t>(profile.segments.size());
  }
  for (size_t r = 0; r < profiles.size(); ++r) {
    MemoryOptions left = options;
    left.time_limit = std::max(options.time_limit - (absl::Now() - start),
                               absl::ZeroDuration()) /
                      static_cast<int64_t>(profiles.size() - r);
    const std::string name = "rank " + RankName(profiles, r);
    progress.segment = "of " + name;
    auto layout = PlanSegments(profiles[r].segments,
                               Watched(std::move(left), progress, *book), book);
    progress.done += static_cast<int64_t>(profiles[r].segments.size());
    if (!layout.ok()) return Annotate(layout.status(), name);
    ranks.push_back({.job = profiles[r].job,
                     .rank = profiles[r].rank,
                     .segments = std::move(layout->segments),
                     .transient_peak = layout->peak});
  }
  return ranks;
}

}  // namespace

absl::StatusOr<SegmentLayout> PlanSegments(
    const std::vector<plan::SegmentKind>& segments,
    const MemoryOptions& options, UnitBook* book) {
  UnitBook own;
  if (book == nullptr) book = &own;
  const absl::Time deadline = absl::Now() + options.time_limit;
  SegmentLayout layout;
  Bytes alignment(1);
  for (size_t k = 0; k < segments.size(); ++k) {
    const plan::SegmentKind& kind = segments[k];
    if (const plan::Placement* known = book->Find(kind.trace)) {
      alignment = std::max(alignment, kind.trace.alignment);
      layout.segments.push_back({.name = kind.name, .placement = *known});
      continue;
    }
    // The kinds share the time, so that a hard kind cannot use all of it.
    MemoryOptions share = options;
    share.time_limit = std::max(deadline - absl::Now(), absl::ZeroDuration()) /
                       static_cast<int64_t>(segments.size() - k);
    auto placement = PlanMemory(kind.trace, share);
    if (!placement.ok()) {
      return Annotate(placement.status(), "segment '" + kind.name + "'");
    }
    book->Add(kind.trace, *placement);
    alignment = std::max(alignment, kind.trace.alignment);
    layout.segments.push_back(
        {.name = kind.name, .placement = *std::move(placement)});
  }
  SLUICE_ASSIGN_OR_RETURN(
      const MemoryPlan sequence,
      PlanMemory(SequenceOf(layout.segments, alignment), options));
  for (size_t k = 0; k < layout.segments.size(); ++k) {
    layout.segments[k].base = sequence.offsets[k];
  }
  layout.peak = sequence.peak;
  return layout;
}

absl::StatusOr<plan::NodePlan> PlanNode(
    const std::vector<plan::RankProfile>& profiles,
    const NodeResources& resources, const MemoryOptions& options,
    UnitBook* book) {
  SLUICE_RETURN_IF_ERROR(CheckProfiles(profiles, resources));
  UnitBook own;  // without a given book, equal ranks are still solved once
  if (book == nullptr) book = &own;
  const absl::Time start = absl::Now();
  plan::NodePlan plan;
  plan.profile_hash = plan::HashProfiles(profiles);
  SLUICE_ASSIGN_OR_RETURN(plan.ranks,
                          PlanMemories(profiles, options, start, book));
  std::vector<Bytes> rooms;
  for (size_t r = 0; r < profiles.size(); ++r) {
    // The bytes that the rank can keep on its GPU after transients and reserve.
    rooms.push_back(std::max(profiles[r].transient_capacity -
                                 plan.ranks[r].transient_peak -
                                 profiles[r].keep_reserve,
                             Bytes(0)));
    if (!plan.infeasible.empty()) continue;
    plan.infeasible = TooMuchTransient(profiles[r], plan.ranks[r]);
    if (!plan.infeasible.empty()) plan.limited_by = "gpu_memory";
  }
  SLUICE_ASSIGN_OR_RETURN(FractionsPlan chosen,
                          PlanFractions(profiles, resources, rooms));
  if (plan.infeasible.empty()) {
    plan.infeasible = chosen.infeasible;
    plan.limited_by = chosen.limited_by;
  }
  plan.limits = std::move(chosen.limits);
  for (size_t r = 0; r < profiles.size(); ++r) {
    RankFractions& fractions = chosen.ranks[r];
    plan::RankPlan& rank = plan.ranks[r];
    rank.classes = std::move(fractions.classes);
    rank.alpha = fractions.alpha;
    rank.alpha_limited_by = std::move(fractions.alpha_limited_by);
    rank.host_bytes = fractions.host_bytes;
  }
  plan.units_solved = book->solved();
  plan.units_known = book->known();
  plan.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  SLUICE_RETURN_IF_ERROR(plan::ValidateNodePlan(profiles, resources, plan));
  return plan;
}

}  // namespace sluice::planner
