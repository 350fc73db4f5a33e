#pragma once

#include <cstdlib>
#include <string_view>

namespace sluice {

// Returns whether SLUICE_POISON=1 was in the environment at the first call:
// memory that must not be read (freed blocks, buffers before their bytes
// arrive) is then filled with NaN, for tests and debugging.
inline bool PoisonsBuffers() {
  static const bool poisons = [] {
    const char* value = std::getenv("SLUICE_POISON");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return poisons;
}

}  // namespace sluice
