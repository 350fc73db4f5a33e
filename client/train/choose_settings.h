// Chooses how a run's step is cut if the command line leaves it open.
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

absl::StatusOr<ChosenSettings> ChooseSettings(const StepperContext& context);

// Returns the least HBM that a step needs besides the states, with nothing
// kept: for the given chunk, else for the first one that is tried.
Bytes LeastStepBytes(const StepperContext& context);

// Sets the order of backward's blocks if --chunk is given and the order is not.
// Nothing is measured: it chooses the order that moves fewer bytes, or the only
// one that has the classes of --fractions. All ranks choose the same.
// InvalidArgument: no order has these classes.
absl::Status ChooseOrder(const StepperContext& context, RunOptions& options,
                         std::string& why);

}  // namespace sluice::train
