// An effect as text, so that two cores' can be compared. Profiles and plans
// are objects of their own in each: what identifies them is compared.
#pragma once

#include <string>

#include "daemon/core/effects.h"

namespace sluice::daemon {

std::string EffectText(const Effects& effects);

}  // namespace sluice::daemon
