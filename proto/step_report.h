// Converts a StepReport to its wire message and back. CheckRequest must have
// accepted an incoming report.
#pragma once

#include "proto/base/step_report.h"
#include "proto/session.pb.h"

namespace sluice::wire {

void ToWire(const ::sluice::StepReport& report, StepReport* out);
::sluice::StepReport FromWire(const StepReport& report);

}  // namespace sluice::wire
