#include "tests/support/places.h"

namespace sluice {

std::string InTree(std::string_view path) {
  return std::string(SLUICE_TREE "/").append(path);
}

std::string InBuild(std::string_view path) {
  return std::string(SLUICE_BUILD "/").append(path);
}

}  // namespace sluice
