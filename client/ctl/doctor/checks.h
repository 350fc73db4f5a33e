// What is wrong, and which command mends it: one pure function per check.
//
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
  std::string said;  // one line
  std::string fix;   // a command; may be empty
};

// One finding per check, always in the same order.
std::vector<Finding> Examine(const Facts& facts);
// The machine's checks alone, for callers that need no daemon.
std::vector<Finding> ExamineMachine(const Facts& facts);

// "0-2,5" as {0, 1, 2, 5}; what is no such list is empty.
std::vector<int> ParseNodes(const std::string& list);

}  // namespace sluice::ctl
