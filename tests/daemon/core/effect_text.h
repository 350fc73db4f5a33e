// Formats effects as text, so that those of two cores can be compared. Profiles
// and plans appear by their ids, as each core has objects of its own.
#pragma once

#include <string>

#include "daemon/core/effects.h"

namespace sluice::daemon {

std::string EffectText(const Effects& effects);

}  // namespace sluice::daemon
