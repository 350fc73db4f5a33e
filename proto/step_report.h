// StepReport to the wire and back. What comes in has passed CheckRequest.
#pragma once

#include "proto/base/step_report.h"
#include "proto/session.pb.h"

namespace sluice::wire {

void ToWire(const ::sluice::StepReport& report, StepReport* out);
::sluice::StepReport FromWire(const StepReport& report);

}  // namespace sluice::wire
