// The picture of a memory plan: time across, address up, a rectangle a buffer.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "planner/memory/plan_memory.h"
#include "planner/trace/named_trace.h"

namespace sluice::ctl {

// One SVG document, light or dark as its viewer prefers. Buffers of at least
// a few pixels are drawn by themselves and told when pointed at; smaller ones
// are merged into pixels, so that the file stays small (below 1 MB at 20,000
// buffers) whatever the trace. The same plan gives the same bytes.
// REQUIRES: one offset a buffer.
std::string PlanSvg(const planner::NamedTrace& named,
                    const planner::MemoryPlan& plan);

}  // namespace sluice::ctl
