// What this program is when it starts itself: a check, or a process that a
// check starts in order to kill it.
//
// Thread safety: none; before there are threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::verify {

// Absent: the arguments are a person's. Else the exit status.
std::optional<int> RunHidden(const std::vector<std::string>& arguments);

}  // namespace sluice::verify
