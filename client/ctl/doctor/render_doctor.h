// Formats the doctor's findings as text.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/ctl/doctor/checks.h"

namespace sluice::ctl {

// Returns whether there is no problem; warnings are allowed.
bool IsWell(const std::vector<Finding>& findings);

// Formats one line per finding, and one per command that solves it.
std::string RenderDoctor(const std::vector<Finding>& findings);

// Formats one line: {"ok", "findings": [{"what", "ok", "health", "said",
// "fix"}]}, a superset of `python -m sluice doctor --json`.
std::string RenderDoctorJson(const std::vector<Finding>& findings);

}  // namespace sluice::ctl
