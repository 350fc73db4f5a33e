// Draws a memory plan: time across, address up, a rectangle per buffer.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/memory/plan_memory.h"
#include "planner/trace/named_trace.h"

namespace sluice::ctl {

// Returns an SVG document, light or dark as its viewer prefers. A buffer of at
// least a few pixels is drawn by itself with a tooltip. Smaller ones are merged
// into pixels, so that the file stays small (below 1 MB at 20,000 buffers)
// whatever the trace is. The same plan gives the same bytes. REQUIRES: one
// offset per buffer.
std::string PlanSvg(const planner::NamedTrace& named,
                    const planner::MemoryPlan& plan);

}  // namespace sluice::ctl
