// Finds problems and the command that solves each, and formats both.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/ctl/doctor/facts.h"

namespace sluice::ctl {

enum class Health { kOk, kWarning, kProblem };

struct Finding {
  std::string what;  // "open files"
  Health health = Health::kOk;
  std::string said;  // the finding in one line
  std::string fix;   // a command that solves it; may be empty
};

// Returns one finding per check, always in the same order.
std::vector<Finding> Examine(const Facts& facts);
// Returns the findings about the machine only, which need no daemon.
std::vector<Finding> ExamineMachine(const Facts& facts);

// Parses "0-2,5" to {0, 1, 2, 5}; returns an empty list for any other text.
std::vector<int> ParseNodes(const std::string& list);

// Returns whether there is no problem; warnings are allowed.
bool IsWell(const std::vector<Finding>& findings);
std::string RenderDoctor(const std::vector<Finding>& findings);
// Formats one line: {"ok", "findings": [{"what", "ok", "health", "said",
// "fix"}]}, a superset of `python -m sluice doctor --json`.
std::string RenderDoctorJson(const std::vector<Finding>& findings);

}  // namespace sluice::ctl
