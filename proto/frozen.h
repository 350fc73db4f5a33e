// The first words of the error with which a frozen daemon (daemon/frozen)
// answers every connection, including those of administrators. The reason
// follows them.
#pragma once

#include <string_view>

namespace sluice::wire {

inline constexpr std::string_view kFrozen = "sluiced is frozen";

}  // namespace sluice::wire
