// The names of kept descriptors.
#pragma once

#include <string_view>

namespace sluice::daemon {

inline constexpr int kMaxDescriptorName = 16;

// 1 to 16 of a-z, 0-9 and '-'. A descriptor from a socket unit has the unit's
// name ("sluiced.socket"), so it is never taken for one of these.
bool IsDescriptorName(std::string_view name);

}  // namespace sluice::daemon
