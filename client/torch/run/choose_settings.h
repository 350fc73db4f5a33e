// Chooses the settings of a streamed run that the user left open
// (planner/stream/settings.h), by calibrating one layer at a few chunk sizes.
//
// Thread safety: one thread; all ranks call it together.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "client/torch/run/run_context.h"
#include "client/torch/stream/streamed_model.h"
#include "planner/stream/options.h"
#include "planner/stream/settings.h"

namespace sluice::runtime {

// Returns options for this rank's memory and peers, without a host region.
StreamContext::Options ContextOptions(const RunContext& context,
                                      const stream::StreamOptions& stream,
                                      client::CopyEngine* copies);

// Calibrates, on all ranks together: runs `times` steps on zeros, in the host
// region that `options` names, and drops their results. Returns the segments,
// each with its least seconds. Gradients are zero afterwards. A failure with
// several ranks leaves them out of step.
absl::StatusOr<std::vector<plan::SegmentKind>> RunCalibration(
    const RunContext& context, const StreamContext::Options& options,
    int times);

struct RatedSettings {
  stream::Settings settings;
  double seconds = 0;  // per step, slowest rank; infinity: does not fit
};

struct ChosenSettings {
  stream::Settings settings;
  // False if the estimate says that no tried setting fits. The settings then
  // have the largest chunk with rings that fit, else the smallest chunk, and
  // planning reports what is short.
  bool fits = false;
  std::vector<RatedSettings> tried;  // the best of each chunk size
};

// Chooses for the memory that is available. `threads` is ATen's number of
// threads. Errors: a lost peer, a failed calibration.
absl::StatusOr<ChosenSettings> ChooseSettings(
    const RunContext& context, const stream::SettingsQuestion& question,
    int threads);

}  // namespace sluice::runtime
