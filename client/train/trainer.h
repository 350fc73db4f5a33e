// The training loop of one rank.
//
// A step is batch x accumulate sequences, one after the other: a streamed
// sequence fills the rings by itself, so batching rows of several would gain
// nothing. Their gradients add up, divided by the number of labels of all of
// them. The update may end in the next step's forward (adamw.h); a save, a new
// plan and the run's end wait for it. Every decision that all ranks must share
// (stop on NaN, stop on Ctrl-C) is made from sums that all of them have.
// Thread safety: one thread.
#pragma once

#include "absl/status/statusor.h"
#include "client/train/run_report.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

// Trains or probes. `report` is updated during the run, so that it is right
// however the run ends.
absl::Status Train(const StepperContext& context, RunReport* report);

}  // namespace sluice::train
