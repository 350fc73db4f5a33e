// Chooses how a run's step is cut if the command line leaves it open.
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
  std::string why;  // one line: what was chosen, and the alternatives
};

// runtime::ChooseSettings (client/torch/run) with the command line's options.
absl::StatusOr<ChosenSettings> ChooseSettings(const StepperContext& context);

// The least HBM that a step needs besides the states: with the given chunks,
// else the first that are tried, and nothing kept.
Bytes LeastStepBytes(const StepperContext& context);

// With --chunk nothing is measured: an order of backward's blocks that is not
// given is the one in which less moves, or the only one that has the classes of
// --fractions. The same on all ranks. InvalidArgument: no order has them.
absl::Status ChooseOrder(const StepperContext& context, RunOptions& options,
                         std::string& why);

// `options` with these settings.
RunOptions With(RunOptions options, const stream::Settings& settings);

}  // namespace sluice::train
