// Draws a memory plan: the x axis is time, the y axis is the address, and each
// buffer is a rectangle.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/memory/plan_memory.h"
#include "planner/trace/read_trace.h"

namespace sluice::ctl {

// Returns an SVG document, light or dark as its viewer prefers. A buffer of at
// least a few pixels has a tooltip; smaller ones are merged into pixels, so
// that the file stays below 1 MB at 20,000 buffers. Equal plans give equal
// bytes. REQUIRES: one offset per buffer.
std::string PlanSvg(const planner::NamedTrace& named,
                    const planner::MemoryPlan& plan);

}  // namespace sluice::ctl
