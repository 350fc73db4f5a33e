// Prints a run's first lines, from what the prepared stepper knows.
// Thread safety: one thread.
#pragma once

#include <string>

#include "client/train/step/stepper.h"

namespace sluice::train {

// Tells the watch which parts a step has and how long it should take.
void ExpectSteps(const StepperContext& context, const Stepper& stepper);
// Prints the banner on rank 0. `cut` is the reason for how the step was cut, if
// the trainer chose that.
void Announce(const StepperContext& context, const Stepper& stepper,
              const std::string& cut);

}  // namespace sluice::train
