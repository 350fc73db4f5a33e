#include "proto/base/poison.h"

#include <cstdlib>
#include <string_view>

namespace sluice {

bool PoisonsBuffers() {
  static const bool poisons = [] {
    const char* value = std::getenv("SLUICE_POISON");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return poisons;
}

}  // namespace sluice
