// How a run's step is cut where the command line leaves it open, and why.
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

// As runtime::ChooseSettings (client/torch/run), asked by the command line.
absl::StatusOr<ChosenSettings> ChooseSettings(const StepperContext& context);

// What a step needs of HBM in addition to the states, at the least: with the
// chunks that were asked for, else the first that are tried, and nothing kept.
Bytes LeastStepBytes(const StepperContext& context);

// With --chunk nothing is measured: an order of backward's blocks that is not
// given is the one in which less moves, or the only one that has the classes of
// --fractions. The same on all ranks. InvalidArgument: no order has them.
absl::Status ChooseOrder(const StepperContext& context, RunOptions& options,
                         std::string& why);

// `options` with these settings.
RunOptions With(RunOptions options, const stream::Settings& settings);

}  // namespace sluice::train
