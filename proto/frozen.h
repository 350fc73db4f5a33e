// How the error begins that a frozen daemon (daemon/frozen) answers whoever
// connects with, also administrators; why it is follows.
#pragma once

#include <string_view>

namespace sluice::wire {

inline constexpr std::string_view kFrozen = "sluiced is frozen";

}  // namespace sluice::wire
