// Converts a StepReport to the wire format and back. An incoming report has
// passed CheckRequest.
#pragma once

#include "proto/base/step_report.h"
#include "proto/session.pb.h"

namespace sluice::wire {

void ToWire(const ::sluice::StepReport& report, StepReport* out);
::sluice::StepReport FromWire(const StepReport& report);

}  // namespace sluice::wire
