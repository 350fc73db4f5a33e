// The naive check every plan passes before use, under the planner's name. It
// is part of plan_format (proto/plan/validate.h): it shares no code with the
// solvers, and the daemon and the client use it too.
#pragma once

#include "proto/plan/validate.h"

namespace sluice::planner {

using plan::ValidateNodePlan;
using plan::ValidatePlacement;
using plan::ValidateRankPlan;

}  // namespace sluice::planner
