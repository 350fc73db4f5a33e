#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "planner/planner.h"
#include "proto/base/status.h"

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
    // The remaining kinds share the time, so that a hard one cannot use it all.
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

}  // namespace sluice::planner
