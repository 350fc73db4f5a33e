// Formats effects as text, so that those of two cores can be compared. Profiles
// appear by job, rank and GPU, and plans by id, as each core has objects of its
// own.
#pragma once

#include <string>

#include "daemon/core/effects.h"

namespace sluice::daemon {

std::string EffectText(const Effects& effects);

}  // namespace sluice::daemon
