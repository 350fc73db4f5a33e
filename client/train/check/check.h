// `sluice-train check`: compares one step of the streamed path, on all ranks,
// with the reference. judge.h defines which errors are ok.
//
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "client/train/check/judge.h"
#include "client/train/launch/peer_watch.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

// Runs the check. All ranks call it; rank 0 compares and fills `report`.
// Returns an Internal status with the reason if the step is not ok.
absl::Status RunCheck(const StepperContext& context, PeerWatch& watch,
                      CheckReport* report);

}  // namespace sluice::train
