// The beginning of the error with which a frozen daemon (daemon/frozen) answers
// every connection, also administrators'; the reason follows.
#pragma once

#include <string_view>

namespace sluice::wire {

inline constexpr std::string_view kFrozen = "sluiced is frozen";

}  // namespace sluice::wire
