// Runs a streamed step's forward and backward with the real code, to record
// what its segments allocate and how long they take. Its results are dropped.
//
// Thread safety: one thread; with several ranks all call it together.
#pragma once

#include <vector>

#include "client/torch/run/run_context.h"
#include "client/torch/stream/stream_context.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

// Returns options for `stream` on this rank's memory, copies and peers. The
// caller adds the host region.
StreamContext::Options ContextOptions(const RunContext& context,
                                      const stream::StreamOptions& stream,
                                      client::CopyEngine* copies);

// Runs `times` steps on zeros, in the host region that `options` names. Returns
// the segments, each with its least seconds over all steps. Gradients are zero
// afterwards. A failure with several ranks leaves them out of step.
absl::StatusOr<std::vector<plan::SegmentKind>> RunCalibration(
    const RunContext& context, const StreamContext::Options& options,
    int times);

}  // namespace sluice::runtime
