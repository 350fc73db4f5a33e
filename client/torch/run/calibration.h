// One forward and backward of a streamed step, with the real code, for what its
// segments ask for and how long they take. Its numbers are dropped.
//
// Thread safety: one thread; with several ranks all call it together.
#pragma once

#include <vector>

#include "client/torch/run/run_context.h"
#include "client/torch/stream/stream_context.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

// `stream` on this rank's memory, copies and peers; the host region is still to
// be given.
StreamContext::Options ContextOptions(const RunContext& context,
                                      const stream::StreamOptions& stream,
                                      client::CopyEngine* copies);

// Runs `times` steps of `options` on zeros, with its host region; the segments
// have the least seconds of all. Gradients are zero afterwards. A failure with
// several ranks leaves them out of step.
absl::StatusOr<std::vector<plan::SegmentKind>> RunCalibration(
    const RunContext& context, const StreamContext::Options& options,
    int times);

}  // namespace sluice::runtime
