// Chooses what the user left open of a streamed run (planner/stream/settings.h)
// by rehearsing a layer at a few chunk sizes, on all ranks together.
//
// Thread safety: one thread; all ranks call it together.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/train/step/stepper.h"
#include "planner/stream/settings.h"

namespace sluice::train {

struct ChosenSettings {
  stream::Settings settings;
  std::string why;  // one line: what was chosen, beside what
};

// What is asked for is taken as it is. Where nothing fits by the estimate, the
// answer is the smallest chunk that was tried, and planning says what is short.
// Errors: a lost peer, a fault of a rehearsal.
absl::StatusOr<ChosenSettings> ChooseSettings(const StepperContext& context);

// `options` with these settings.
RunOptions With(RunOptions options, const stream::Settings& settings);

}  // namespace sluice::train
