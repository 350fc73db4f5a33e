// The first words of the error with which a frozen daemon (daemon/frozen)
// answers every connection, including administrators'. The reason follows these
// words.
#pragma once

#include <string_view>

namespace sluice::wire {

inline constexpr std::string_view kFrozen = "sluiced is frozen";

}  // namespace sluice::wire
