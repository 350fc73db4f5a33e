// The modes in which this program starts itself: as a check, as a probe of a
// driver rule, or as a rank that a check kills.
//
// Thread safety: none; called before there are threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::verify {

// Runs such a mode and returns its exit status, or nullopt if the arguments are
// a user's.
std::optional<int> RunHidden(const std::vector<std::string>& arguments);

}  // namespace sluice::verify
