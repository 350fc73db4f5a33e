// Formats an effect as text, so that the effects of two cores can be compared.
// Each core has its own objects of profiles and plans, so the text has what
// identifies them.
#pragma once

#include <string>

#include "daemon/core/effects.h"

namespace sluice::daemon {

std::string EffectText(const Effects& effects);

}  // namespace sluice::daemon
