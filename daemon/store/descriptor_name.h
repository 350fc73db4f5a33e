// What a kept descriptor is called.
#pragma once

#include <string_view>

namespace sluice::daemon {

inline constexpr int kMaxDescriptorName = 16;

// 1 to 16 of a-z, 0-9 and '-'. What a socket unit hands on is called like the
// unit ("sluiced.socket"), so it is never taken for one of these.
bool IsDescriptorName(std::string_view name);

}  // namespace sluice::daemon
