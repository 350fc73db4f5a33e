// Formats effects as text, so that the effects of two cores can be compared. A
// profile appears as its job, rank and GPU, a plan as its id.
#pragma once

#include <string>

#include "daemon/core/effects.h"

namespace sluice::daemon {

std::string EffectText(const Effects& effects);

}  // namespace sluice::daemon
