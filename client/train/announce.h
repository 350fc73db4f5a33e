// A run's first words, from what the stepper knows once it is prepared.
// Thread safety: one thread.
#pragma once

#include <string>

#include "client/train/step/stepper.h"

namespace sluice::train {

// Tells the watch how a step goes by and how long it should take.
void ExpectSteps(const StepperContext& context, const Stepper& stepper);
// On rank 0: the banner; `cut` says how the step was cut where that was open.
void Announce(const StepperContext& context, const Stepper& stepper,
              const std::string& cut);

}  // namespace sluice::train
