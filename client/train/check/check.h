// `sluice-train check`: one step of the streamed path on all ranks against
// the reference.
//
// judge.h says what is ok.
// Thread safety: one thread.
#pragma once

#include "absl/status/status.h"
#include "client/train/check/judge.h"
#include "client/train/launch/peer_watch.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

// All ranks call it; rank 0 compares and fills `report`. A step that is not
// ok is an Internal status that says why.
absl::Status RunCheck(const StepperContext& context, PeerWatch& watch,
                      CheckReport* report);

}  // namespace sluice::train
