// `sluice-train check`: compares one step on all ranks with the reference.
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "client/train/check/judge.h"
#include "client/train/launch/peer_watch.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

// All ranks call it; rank 0 compares and fills `report`. Internal, with the
// reason: the step is not ok.
absl::Status RunCheck(const StepperContext& context, PeerWatch& watch,
                      CheckReport* report);

}  // namespace sluice::train
