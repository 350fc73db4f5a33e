// Chooses what the user left open of a streamed run (planner/stream/settings.h)
// by calibrating a layer at a few chunk sizes, on all ranks together.
//
// Thread safety: one thread; all ranks call it together.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "client/torch/run/run_context.h"
#include "planner/stream/settings.h"

namespace sluice::runtime {

struct RatedSettings {
  stream::Settings settings;
  double seconds = 0;  // of a step, on the slowest rank; infinity: no room
};

struct ChosenSettings {
  stream::Settings settings;
  // False: by the estimate nothing that was tried does, and this is the
  // smallest chunk of them; planning says what is short.
  bool fits = false;
  std::vector<RatedSettings> tried;  // the best of each chunk size
};

// What `question` asks for is taken as it is; the memory there is is filled in.
// `threads`: of ATen. Errors: a lost peer, a fault of a calibration.
absl::StatusOr<ChosenSettings> ChooseSettings(
    const RunContext& context, const stream::SettingsQuestion& question,
    int threads);

}  // namespace sluice::runtime
