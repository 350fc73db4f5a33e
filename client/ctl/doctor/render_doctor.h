// The doctor's findings as text.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/ctl/doctor/checks.h"

namespace sluice::ctl {

// No problem; warnings may be.
bool IsWell(const std::vector<Finding>& findings);

// A line per finding, and one per command that mends it.
std::string RenderDoctor(const std::vector<Finding>& findings);

// One line: {"ok", "findings": [{"what", "ok", "health", "said", "fix"}]}, as
// `python -m sluice doctor --json` has it, with more.
std::string RenderDoctorJson(const std::vector<Finding>& findings);

}  // namespace sluice::ctl
